"""Output norms of the experts, observed in flight: fused experts hide their gated activations, and this looks at them.

For the length of one pass, the experts instance gets an `_apply_gate` of its own that calls the class's, with the same
input and the same output, and keeps what came out; one more down projection gives each selection's output. Where no
`_apply_gate` is called (older classes, eager loops) the activation is recomputed from x. Either way the outputs, summed
with their weights, must be what the module returned: rows that were matched to the wrong tokens cannot pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from backend.adapters.anatomy import AdapterLies, MoeLayer
from backend.adapters.block import relative_error, tally, tolerance


@dataclass
class Flight:
    """Gated activations of one layer's pass, in the order the model computed them."""

    pieces: list[Tensor] = field(default_factory=list)

    def rows(self, layer: MoeLayer, indices: Tensor) -> tuple[Tensor, Tensor] | None:
        """The activations, and which of them belongs to each (token, slot) of `indices`; None if none was seen."""
        order = layer.flight_order(indices, len(self.pieces))
        if order is None or not self.pieces:
            return None
        seen = torch.cat(self.pieces)
        if len(seen) != indices.numel() or len(order) != indices.numel():
            raise AdapterLies(f"{layer.name}: {len(seen)} activations were observed for {indices.numel()} selections")
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return seen, place.view_as(indices)


@contextmanager
def observed(experts: nn.Module, mine: Callable[[], bool]) -> Iterator[Flight]:
    """Keep the gated activations of passes that run inside, on the thread for which `mine` is true."""
    flight, gate = Flight(), getattr(type(experts), "_apply_gate", None)
    if gate is None:
        yield flight
        return

    def apply(gate_up: Tensor) -> Tensor:
        out = gate(experts, gate_up)
        if mine():
            flight.pieces.append(out.detach())
        return out

    instance: Any = experts
    instance._apply_gate = apply
    try:
        yield flight
    finally:
        del instance._apply_gate


@dataclass(frozen=True)
class Call:
    """One call of an experts module, cut to the rows wanted."""

    x: Tensor
    indices: Tensor
    weights: Tensor
    output: Tensor


def output_norms(layer: MoeLayer, call: Call, seen: tuple[Tensor, Tensor] | None) -> Tensor:
    """|f_e(x)| of each served (token, slot) in float32, NaN where not served.

    Raises:
        AdapterLies: If the outputs do not add up to what the module returned.
    """
    counted = tally(layer, call.indices, call.weights)
    norms = torch.full(call.indices.shape, torch.nan, device=call.x.device)
    exact = torch.promote_types(call.x.dtype, torch.float32)
    rebuilt = torch.where(counted.identity, call.weights, 0).sum(-1, keepdim=True).to(exact) * call.x
    for index, token, slot in counted.by_expert(call.indices):
        expert = layer.expert(index)
        out = expert(call.x[token]) if seen is None else expert.project(seen[0][seen[1][token, slot]])
        norms[token, slot] = out.float().norm(dim=-1)
        rebuilt.index_add_(0, token, out.to(exact) * call.weights[token, slot, None].to(exact))
    error, allowed = relative_error(rebuilt, call.output.to(exact)), tolerance(call.output.dtype, layer.top_k)
    if not error <= allowed:
        how = "recomputed" if seen is None else "observed"
        raise AdapterLies(
            f"{layer.name}: the {how} outputs of its experts add up to something {error:.1e} off what it returned "
            f"({allowed:.0e} allowed): {how} rows differ from routed rows"
        )
    return norms
