"""The gradient of the next-token loss by the router's logits: one pass with gradients, which leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.errors import GeometryError
from backend.adapters.anatomy import Anatomy, MoeLayer

WANTED = "a statistic asked for the gradient of the task by them (need `backward`)"


def run_with_gradients(model: Any, anatomy: Anatomy, ids: Tensor, mask: Tensor) -> tuple[Any, list[Tensor]]:
    """The model's output on this padded batch, and d loss / d logits of each layer, [row of the batch, expert].

    The loss is the sum of the next-token cross-entropies of all prompts, so a token's gradient does not depend on
    which prompts share its batch.

    Raises:
        GeometryError: If the model predicts no token, or a router shows no logits that its output depends on.
    """
    with _differentiable(model, anatomy), _live_logits(anatomy) as live, torch.enable_grad():
        out = model(input_ids=ids, attention_mask=mask, use_cache=False)
        if getattr(out, "logits", None) is None:
            raise GeometryError(f"{type(model).__name__} has no language-model head, so there is no loss; {WANTED}")
        shown = [_shown(layer, logits, mask.numel()) for layer, logits in zip(anatomy.layers, live, strict=True)]
        loss = next_token_loss(out.logits, ids, mask)
        if not loss.requires_grad:  # no prompt has a second token
            return out, [torch.zeros_like(each).reshape(mask.numel(), -1) for each in shown]
        found = torch.autograd.grad(loss, shown, allow_unused=True)
    for layer, gradient in zip(anatomy.layers, found, strict=True):
        if gradient is None:
            raise GeometryError(f"the output does not depend on the logits that {layer.name}'s router shows; {WANTED}")
    return out, [_exact(gradient).reshape(mask.numel(), -1) for gradient in found]


def next_token_loss(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Summed cross-entropy, in nats, of each token given those before it in its prompt; padding is on the right."""
    follows = mask[:, 1:].bool()
    return F.cross_entropy(_exact(logits[:, :-1][follows]), ids[:, 1:][follows], reduction="sum")


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _shown(layer: MoeLayer, logits: Tensor | None, rows: int) -> Tensor:
    if logits is None or logits.numel() != rows * layer.size()[0] or not logits.requires_grad:
        raise GeometryError(f"the router of {layer.name} hides its logits; {WANTED}")
    return logits


@contextmanager
def _differentiable(model: nn.Module, anatomy: Anatomy) -> Iterator[None]:
    """Only the routers' tensors take part, so that every logit is in the graph and no weight gets a gradient."""
    kept = [(tensor, tensor.requires_grad) for tensor in (*model.parameters(), *model.buffers())]
    try:
        for tensor, _ in kept:
            tensor.requires_grad_(False)
        for tensor in _routing(anatomy.layers):
            tensor.requires_grad_()
        yield
    finally:
        for tensor, before in kept:
            tensor.requires_grad_(before)


def _routing(layers: Sequence[MoeLayer]) -> Iterator[Tensor]:
    for layer in layers:
        for tensor in (*layer.router.parameters(), *layer.router.buffers()):
            if tensor.is_floating_point():
                yield tensor


@contextmanager
def _live_logits(anatomy: Anatomy) -> Iterator[list[Tensor | None]]:
    """The routers' logits with their graph, of passes that this thread runs inside."""
    live: list[Tensor | None] = [None for _ in anatomy.layers]
    thread = threading.get_ident()

    def hook(index: int, layer: MoeLayer) -> Any:
        def router_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == thread:
                logits = layer.read_logits(output)
                live[index] = logits if isinstance(logits, Tensor) else None

        return router_output

    handles = [layer.router.register_forward_hook(hook(n, layer)) for n, layer in enumerate(anatomy.layers)]
    try:
        yield live
    finally:
        for handle in handles:
            handle.remove()
