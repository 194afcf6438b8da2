"""The generic adapter: experts fused in one module of 3-D parameters, as nearly every model of transformers 5 has them.

`@use_experts_implementation` swaps the `forward` of the experts class, so hooks on the module see (x, indices, weights)
under eager, batched_mm and grouped_mm alike, and stamps on the instance how its tensors lie.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.errors import GeometryError
from analysis.expert import Expert
from backend.adapters.anatomy import MoeLayer, Unsupported

ROUTER_NAMES = ("gate", "router")
SHARED_NAMES = ("shared_expert", "shared_experts", "shared_mlp")
ROW_NAMES = ("gate", "layer", "classifier", "wg", "proj")
SELECTION_BIASES = ("e_score_correction_bias", "expert_bias")
DEQUANTISE = "load it with its quantisation config's dequantize=True"


@dataclass(frozen=True, eq=False)
class FusedLayer(MoeLayer):
    """`gate_up_proj` (or `up_proj`) and `down_proj` with a leading expert axis, beside a router.

    A family that keeps the same three matrices elsewhere says so in `first`, `down` and `phi`.
    """

    def size(self) -> tuple[int, int, int]:
        """Experts, model width, hidden width of one expert."""
        experts, model, hidden = self.down().shape
        return experts, model, hidden

    def expert(self, index: int) -> Expert:
        """One expert as views of the fused tensors, of which no graph is kept."""
        gate, up = self.first()
        gate_bias, up_bias = self._first_bias()
        down_bias = getattr(self.experts, "down_proj_bias", None)
        parts = (gate, up, self.down(), gate_bias, up_bias, down_bias)
        gate, up, down, *biases = (None if t is None else t.detach()[index] for t in parts)
        assert up is not None and down is not None
        return Expert(gate, up, down, self.phi, *biases)

    def shared(self) -> Expert | None:
        """A plain network beside the experts, gated as they are or not; a gate on its output is a weight, so not here.

        None where it is something else.
        """
        found: Any = self._shared_module()
        names = ("gate_proj", "up_proj", "down_proj")
        linear = [getattr(found, name, None) for name in names if name != "gate_proj" or hasattr(found, name)]
        if not all(isinstance(each, nn.Linear) for each in linear) or not hasattr(found, "act_fn"):
            return None
        *gate, up, down = (each.weight.detach() for each in linear if each is not None)
        *gate_bias, up_bias, down_bias = (None if e is None or e.bias is None else e.bias.detach() for e in linear)
        own_gate, own_bias = (gate[0], gate_bias[0]) if gate else (None, None)
        return Expert(own_gate, up, down, lambda z, u: between(found, z, u), own_bias, up_bias, down_bias)

    def shared_alone(self, x: Tensor) -> Tensor:
        """The module's own forward."""
        found = self._shared_module()
        return super().shared_alone(x) if found is None else found(x)

    def shared_weight(self, x: Tensor) -> Tensor:
        """The sigmoid of the block's own gate on the shared expert's output; a half where the block takes the mean."""
        gate = getattr(self.block, "shared_expert_gate", None)
        if not isinstance(gate, nn.Linear):
            mean = getattr(self.block, "shared_expert_combination_strategy", None) == "average"
            return super().shared_weight(x) / (2 if mean else 1)
        exact = torch.promote_types(x.dtype, torch.float32)
        weight, bias = gate.weight.detach().to(exact), None if gate.bias is None else gate.bias.detach().to(exact)
        return F.linear(x.to(exact), weight, bias).sigmoid()[:, 0]

    def alone(self, index: int, x: Tensor) -> Tensor:
        """The class's eager forward, whatever implementation is set: it can be differentiated twice."""
        chosen, full = torch.full((len(x), 1), index, device=x.device), x.new_ones(len(x), 1)
        return inspect.unwrap(type(self.experts).forward)(self.experts, x, chosen, full)

    def weights(self, name: str) -> Tensor:
        """A weight slot of this layer, without the layer axis."""
        if name == "router_weight":
            return self._router_weight()
        if name == "router_bias":
            return self._router_bias()
        if name.startswith("shared_"):
            return self._shared_weights(name.removeprefix("shared_").removesuffix("_weight"))
        gate, up = self.first()
        if name == "gate_weight" and gate is None:
            raise GeometryError(f"the experts of {self.name} have no gate: there is no gate_weight to read")
        found = {"gate_weight": gate, "up_weight": up, "down_weight": self.down()}[name]
        assert found is not None
        return found

    def flight_order(self, indices: Tensor, pieces: int) -> Tensor | None:
        """Sorted by expert in one call (grouped), as they are in one call (batched), or expert by expert (eager)."""
        module: Any = self.experts
        implementation = getattr(getattr(module, "config", None), "_experts_implementation", None)
        if implementation == "grouped_mm":
            return indices.flatten().sort().indices  # the very sort of the model, so ties fall alike
        if implementation == "batched_mm":
            return torch.arange(indices.numel(), device=indices.device)
        hit = indices.unique().tolist()
        if pieces != len(hit):
            return None
        k = indices.shape[-1]
        slots_first = [torch.where(indices.T == index) for index in hit]
        return torch.cat([token * k + slot for slot, token in slots_first])

    def gate_and_up(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Halves, or every other one, as the fused projection lies."""
        return super().gate_and_up(fused) if self._concatenated else (fused[..., ::2], fused[..., 1::2])

    def rows(self) -> nn.Module:
        """The router itself, or the linear child that holds its rows (a norm may stand before it)."""
        weight = getattr(self.router, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2:
            return self.router
        linear = (getattr(self.router, name, None) for name in ROW_NAMES)
        return next((child for child in linear if isinstance(child, nn.Linear)), self.router)

    def first(self) -> tuple[Tensor | None, Tensor]:
        """The gate's (None without one) and the up projections [expert, hidden, model]."""
        fused = getattr(self.experts, "gate_up_proj", None)
        if not isinstance(fused, Tensor):
            up = self.experts.up_proj
            assert isinstance(up, Tensor)
            return None, up.transpose(1, 2) if self._transposed else up
        return self._split(fused.transpose(1, 2) if self._transposed else fused)

    def down(self) -> Tensor:
        """The down projections [expert, model, hidden]."""
        down = self.experts.down_proj
        assert isinstance(down, Tensor)
        return down.transpose(1, 2) if self._transposed else down

    def phi(self, gate: Tensor | None, up: Tensor) -> Tensor:
        """What stands between them: of the gate's pre-activation (None without one) and the up projection's."""
        module: Any = self.experts
        if gate is None:
            return module.act_fn(up)
        if not hasattr(type(module), "_apply_gate"):
            return module.act_fn(gate) * up
        fused = torch.cat([gate, up], -1) if self._concatenated else torch.stack([gate, up], -1).flatten(-2)
        return type(module)._apply_gate(module, fused)

    def _router_weight(self) -> Tensor:
        weight, (experts, model, _) = getattr(self.rows(), "weight", None), self.size()
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            raise GeometryError(f"the router of {self.name} ({type(self.router).__name__}) has no rows, one an expert")
        if weight.shape != (experts, model):
            raise GeometryError(
                f"the router of {self.name} has rows {tuple(weight.shape)} for {experts} experts of width {model}: "
                "it also scores zero, skip or shared experts, or reads another space than they do"
            )
        return weight

    def _shared_module(self) -> nn.Module | None:
        return next((child for n in SHARED_NAMES if (child := getattr(self.block, n, None)) is not None), None)

    def _shared_weights(self, part: str) -> Tensor:
        shared = self.shared()
        found = None if shared is None else getattr(shared, part)
        if found is None:
            missing = "no shared expert" if shared is None else f"a shared expert without {part}"
            raise GeometryError(f"the block of {self.name} has {missing}: there is no shared_{part}_weight to read")
        return found

    def _router_bias(self) -> Tensor:
        """What moves the ranking beside x: a selection bias, or the bias of the scores; NaN where there is neither."""
        owners = (self.router, self.block, getattr(self.router, "moe_statics", None))
        found = [getattr(o, n, None) for o in owners for n in SELECTION_BIASES] + [getattr(self.rows(), "bias", None)]
        experts = self.size()[0]
        for bias in found:
            if isinstance(bias, Tensor) and bias.numel() == experts:
                return bias.reshape(experts)
        return torch.full((experts,), torch.nan)

    def _first_bias(self) -> tuple[Tensor | None, Tensor | None]:
        fused = getattr(self.experts, "gate_up_proj_bias", None)
        return self._split(fused) if isinstance(fused, Tensor) else (None, getattr(self.experts, "up_proj_bias", None))

    def _split(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        if self._concatenated:
            gate, up = fused.chunk(2, dim=1)
            return gate, up
        return fused[:, ::2], fused[:, 1::2]

    @property
    def _transposed(self) -> bool:
        return bool(getattr(self.experts, "is_transposed", False))

    @property
    def _concatenated(self) -> bool:
        return bool(getattr(self.experts, "is_concatenated", True))


class _Gives(nn.Module):
    """Stands in for a projection: whatever goes in, this comes out."""

    def __init__(self, value: Tensor | None):
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor | None:
        return self.value


def between(module: nn.Module, gate: Tensor | None, up: Tensor) -> Tensor:
    """What a network's own forward puts between its projections, of their pre-activations: a clamp is no attribute."""
    stub = copy.copy(module)  # shares every tensor; its projections alone are others
    given = {"gate_proj": _Gives(gate), "up_proj": _Gives(up), "down_proj": nn.Identity()}
    stub.__dict__["_modules"] = {**module._modules, **given}
    return type(module).forward(stub, up)  # pyright: ignore[reportCallIssue]


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> FusedLayer | None:
    """The layer whose experts module is `modules[name]`, or None if that is no fused experts module beside a router.

    Raises:
        Unsupported: If it is one, but what it stores or how it is called cannot be read.
    """
    experts = modules[name]
    if type(experts).__name__ == "Mxfp4GptOssExperts":
        raise Unsupported(f"{name} stores its experts packed as mxfp4: {DEQUANTISE}")
    if not is_fused(experts):
        return None
    block = modules[name.rpartition(".")[0]]
    router = next((child for n in ROUTER_NAMES if isinstance(child := getattr(block, n, None), nn.Module)), None)
    if router is None:  # experts without a router are picked by something else than the token (a data set, a task)
        return None
    _refuse(name, experts, top_k)
    assert top_k is not None
    return FusedLayer(label, name, experts, router, block, top_k)


def is_fused(module: nn.Module) -> bool:
    """Told by its parameters, not by its name: GraniteMoeSharedExperts are the routed ones."""
    first = getattr(module, "gate_up_proj", getattr(module, "up_proj", None))
    down = getattr(module, "down_proj", None)
    if hasattr(module, "gate_proj"):  # a gate of its own: inkling's shared experts
        return False
    return all(isinstance(t, nn.Parameter) and t.dim() == 3 for t in (first, down))


def _refuse(name: str, experts: nn.Module, top_k: int | None) -> None:
    kind, dtype = type(experts).__name__, getattr(experts, "down_proj").dtype  # noqa: B009
    if not dtype.is_floating_point or dtype.itemsize < 2 or hasattr(experts, "down_proj_scale_inv"):
        raise Unsupported(f"{name} ({kind}) stores its experts packed as {dtype}: {DEQUANTISE}")
    if getattr(experts, "_is_expert_parallel", False):
        raise Unsupported(f"{name} ({kind}) holds only its share of the experts: load without expert parallelism")
    if getattr(experts, "has_post_expert_norm", False):
        raise Unsupported(
            f"{name} ({kind}) normalises each expert's output: what such an expert does to its input is no product of "
            "two matrices, which every figure of functions here is made of"
        )
    if len(inspect.signature(type(experts).forward).parameters) != 4:
        raise Unsupported(f"{name} ({kind}) is not called with (x, indices, weights): its routing cannot be read there")
    if top_k is None:
        raise Unsupported(f"neither the router of {name} nor the config says how many experts a token gets")
