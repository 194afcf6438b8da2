"""What fused experts hide, observed in flight: what goes into their gate, or what comes out of it.

For the length of one pass, the experts instance gets an `_apply_gate` of its own that calls the class's, with the same
input and the same output, and keeps one of the two. One more down projection gives each selection's output. Where no
`_apply_gate` is called (older classes, eager loops) both are recomputed from x. Either way the outputs, summed with
their weights, must be what the module returned, and some observed pre-activations what their experts make of x: rows
that were matched to the wrong tokens cannot pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from analysis.expert import Expert
from backend.adapters.anatomy import AdapterLies, MoeLayer
from backend.adapters.block import relative_error, tally, tolerance

CHECKED = 8
"""Observed pre-activations that are compared with their own experts', in each layer of each pass."""


@dataclass(frozen=True)
class Seen:
    """Rows in the order the model computed them, and which of them belongs to each (token, slot)."""

    rows: Tensor
    place: Tensor

    def at(self, token: Tensor, slot: Tensor) -> Tensor:
        """The rows of these selections."""
        return self.rows[self.place[token, slot]]


@dataclass
class Flight:
    """One layer's pass: the gate's inputs if `before`, else its outputs, in the order the model computed them."""

    before: bool
    pieces: list[Tensor] = field(default_factory=list)

    def land(self, layer: MoeLayer, indices: Tensor, keep: Callable[[Tensor], Tensor]) -> Seen | None:
        """What was seen, cut by `keep` to the wanted tokens, and forgotten here; None if nothing was."""
        pieces, self.pieces = self.pieces, []
        order = layer.flight_order(indices, len(pieces))
        if order is None or not pieces:
            return None
        seen = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        if len(seen) != indices.numel() or len(order) != indices.numel():
            raise AdapterLies(f"{layer.name}: {len(seen)} activations were observed for {indices.numel()} selections")
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        place = keep(place.view_as(indices))
        return Seen(seen.to(place.device), place)


@contextmanager
def observed(experts: nn.Module, mine: Callable[[], bool], before: bool) -> Iterator[Flight]:
    """Watch the gate in passes that run inside, on the thread for which `mine` is true."""
    flight, gate = Flight(before), getattr(type(experts), "_apply_gate", None)
    if gate is None:
        yield flight
        return

    def apply(gate_up: Tensor) -> Tensor:
        # A copy of the input, since a model may write over it; nobody has seen the output yet.
        kept = gate_up.detach().clone() if before and mine() else None
        out = gate(experts, gate_up)
        if mine():
            flight.pieces.append(out.detach() if kept is None else kept)
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


def preactivations(layer: MoeLayer, call: Call, seen: Seen | None) -> tuple[Tensor | None, Tensor]:
    """What goes into phi at each (token, slot), [token, k, hidden], NaN where not served; no gate's without a gate.

    Raises:
        AdapterLies: If observed rows are not those of the experts that were routed to.
    """
    counted = tally(layer, call.indices, call.weights)
    if seen is not None:
        _check(layer, call, seen, counted.served)
        gate, up = layer.gate_and_up(seen.rows[seen.place].masked_fill_(~counted.served[..., None], torch.nan))
        return gate, up
    blank = call.x.new_full((*call.indices.shape, layer.size()[2]), torch.nan)
    gate, up = (None if layer.expert(0).gate is None else blank.clone()), blank
    for index, token, slot in counted.by_expert(call.indices):
        own_gate, up[token, slot] = layer.expert(index).preactivations(call.x[token])
        if gate is not None and own_gate is not None:
            gate[token, slot] = own_gate
    return gate, up


def output_sizes(
    layer: MoeLayer, call: Call, activations: Callable[[Expert, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """|f_e(x)| of each served (token, slot), and its least and largest component, in float32; NaN where not served.

    Args:
        layer: Whose experts they are.
        call: What they were given and what they returned.
        activations: Gated activations of this expert at these tokens and slots.

    Raises:
        AdapterLies: If the outputs do not add up to what the module returned.
    """
    counted = tally(layer, call.indices, call.weights)
    norms = torch.full(call.indices.shape, torch.nan, device=call.x.device)
    extremes = torch.full((*call.indices.shape, 2), torch.nan, device=call.x.device)
    exact = torch.promote_types(call.x.dtype, torch.float32)
    rebuilt = torch.where(counted.identity, call.weights, 0).sum(-1, keepdim=True).to(exact) * call.x
    for index, token, slot in counted.by_expert(call.indices):
        expert = layer.expert(index)
        out = expert.project(activations(expert, token, slot))
        norms[token, slot] = out.float().norm(dim=-1)
        extremes[token, slot] = torch.stack([out.amin(-1), out.amax(-1)], -1).float()
        rebuilt.index_add_(0, token, out.to(exact) * call.weights[token, slot, None].to(exact))
    error, allowed = relative_error(rebuilt, call.output.to(exact)), tolerance(call.output.dtype, layer.top_k)
    if not error <= allowed:
        raise AdapterLies(
            f"{layer.name}: the outputs of its experts, observed or recomputed, add up to something {error:.1e} off "
            f"what it returned ({allowed:.0e} allowed): observed rows differ from routed rows"
        )
    return norms, extremes


def _check(layer: MoeLayer, call: Call, seen: Seen, served: Tensor) -> None:
    pairs = served.nonzero()
    for token, slot in pairs[:: max(1, len(pairs) // CHECKED)][:CHECKED].tolist():
        expert = layer.expert(int(call.indices[token, slot]))
        gate, up = expert.preactivations(call.x[token : token + 1])
        found = torch.cat(layer.gate_and_up(seen.rows[seen.place[token, slot]][None]), -1)
        truth = torch.cat([up if gate is None else gate, up], -1)
        error, allowed = relative_error(found.double(), truth.double()), tolerance(found.dtype, 1)
        if not error <= allowed:
            raise AdapterLies(
                f"{layer.name}: what was observed before the gate of expert {int(call.indices[token, slot])} is "
                f"{error:.1e} off what that expert makes of its token ({allowed:.0e} allowed): observed rows differ "
                "from routed rows"
            )
