"""Another router in a model of transformers, everything else kept: one factor changed in a model not the lab's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.output_capturing import OutputRecorder, install_output_capuring_hook

from analysis.errors import GeometryError
from analysis.lab.config import LabMoeConfig
from analysis.lab.options import checked
from analysis.lab.router import Router
from analysis.lab.routers import DENSE, build_router, serves_all
from backend.adapters import adapt
from backend.adapters.anatomy import MoeLayer, Unsupported

PROBE = 4  # tokens that the old router is shown, to see what it returns


def swap_routers(model: nn.Module, router: str, *, keep_rows: bool = False, seed: int = 0, **options: Any) -> None:
    """Put a router of the lab in the place of each of the model's own, in the model given.

    The model reports the new router's logits where it reported its own. To train it, see backend/README.md.

    Args:
        model: Any model that an adapter reads and whose routers return logits, weights and indices.
        router: A name of `analysis.lab.routers`; not "dense".
        keep_rows: Take over the old rows; without it they are drawn anew, with the model's `initializer_range`.
        seed: Of the rows drawn.
        options: Those of the router (`analysis.lab.options`), such as `router_aux_loss_coef`.

    Raises:
        UnknownName: If no router has this name, or the router no such option.
        BadKnob: If an option's value is outside what it takes.
        Unsupported: If the model's blocks take something else from their router, or rows cannot be taken over.
    """
    if router == DENSE:
        raise GeometryError("a dense model has no router to put in another's place; name a router")
    text: Any = model.config.get_text_config()  # type: ignore[operator]
    layers = adapt(model).layers
    for layer in layers:
        _probe(layer)
    options = checked(router, options)
    made = [_made(layer, router, text, options) for layer in layers]
    generator = torch.Generator().manual_seed(seed)
    for layer, new in zip(layers, made, strict=True):
        _fill(new, layer, text.initializer_range, generator if not keep_rows else None)
        _report(model, layer, new)
        setattr(layer.block, _place(layer), new)
    _tell_tokens(model, made)


def _made(layer: MoeLayer, router: str, text: Any, options: dict[str, Any]) -> Router:
    experts, width, _ = layer.size()
    config = LabMoeConfig(
        router=router,
        num_experts=experts,
        num_experts_per_tok=experts if serves_all(router) else layer.top_k,
        hidden_size=width,
        vocab_size=text.vocab_size,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **options,
    )
    weight = layer.weights("router_weight")
    # Scores in float32 whatever the model runs in: a rounded centroid or bias would stop moving.
    return build_router(config).to(weight.device).train(layer.block.training)


@torch.no_grad()
def _fill(new: Router, layer: MoeLayer, spread: float, generator: torch.Generator | None) -> None:
    if "weight" not in new.drawn:
        return
    if generator is None:
        new.weight.copy_(layer.weights("router_weight"))
    else:
        new.weight.copy_(torch.randn(new.weight.shape, generator=generator) * spread)


def _place(layer: MoeLayer) -> str:
    return next(name for name, child in layer.block.named_children() if child is layer.router)


@torch.no_grad()
def _probe(layer: MoeLayer) -> None:
    """The old router must return what the lab's do, or the block would read something else out of them."""
    experts, width, _ = layer.size()
    weight = layer.weights("router_weight")
    seen = layer.router(torch.zeros(PROBE, width, dtype=weight.dtype, device=weight.device))
    wanted = [(PROBE, experts), (PROBE, layer.top_k), (PROBE, layer.top_k)]
    found = [tuple(each.shape) for each in (seen if isinstance(seen, tuple) else (seen,)) if isinstance(each, Tensor)]
    if found != wanted:
        raise Unsupported(
            f"the block of {layer.name} takes {found} from its router; a router of the lab returns logits, weights and "
            f"indices {wanted}"
        )


def _report(model: nn.Module, layer: MoeLayer, new: Router) -> None:
    """`output_router_logits=True` gives the new router's logits: transformers hooks the model's own class of router."""
    bodies = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    body = next(part for part in reversed(bodies) if layer.router in part.modules())
    told = (body._can_record_outputs or {}).get("router_logits")
    own = told.target_class if isinstance(told, OutputRecorder) else None
    if own is None or not isinstance(layer.router, own | Router):
        return
    if not isinstance(new, own) or getattr(body, "_output_capturing_hooks_installed", False):
        install_output_capuring_hook(new, "router_logits", 0)


def _tell_tokens(model: nn.Module, routers: list[Router]) -> None:
    """Routers may ask which tokens they see and which are padding: they are told before each call of the model."""

    def tell(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        for router in routers:
            router.token_ids = ids
            router.real_tokens = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None

    model.register_forward_pre_hook(tell, with_kwargs=True)
