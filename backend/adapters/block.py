"""What one MoE block does, from its slots alone: the tally of its selections and its routed output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.adapters.anatomy import AdapterLies, MoeLayer

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
HALF_TOLERANCE = 1e-2
MANY = 16


@dataclass(frozen=True)
class Tally:
    """What became of each selection; each (token, slot) is in exactly one of the four."""

    served: Tensor
    dropped: Tensor
    skipped: Tensor
    identity: Tensor

    def by_expert(self, indices: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each expert that served, with the tokens and slots it served."""
        for index in indices[self.served].unique().tolist():
            token, slot = torch.where((indices == index) & self.served)
            yield index, token, slot


def tally(layer: MoeLayer, indices: Tensor, weights: Tensor) -> Tally:
    """Served, dropped, skipped, identity, as masks [token, k] that together hold every selection once.

    Raises:
        AdapterLies: If they do not, or if a token has another number of selections than the adapter said.
    """
    experts, _, _ = layer.size()
    if indices.shape[-1] != layer.top_k:
        raise AdapterLies(
            f"{layer.name}: top {layer.top_k} was expected, each token has {indices.shape[-1]} selections"
        )
    identity, skipped = layer.identity(indices), layer.skipped(indices, weights)
    dropped = layer.dropped(indices, weights)
    served = (indices >= 0) & (indices < experts) & ~identity & ~skipped & ~dropped
    parts = [int(mask.sum()) for mask in (served, dropped, skipped, identity)]
    if sum(parts) != indices.numel():
        seen = dict(zip(("served", "dropped", "skipped", "identity"), parts, strict=True))
        raise AdapterLies(
            f"{layer.name}: {indices.numel()} selections (tokens x k) are not the sum of {seen}; indices run from "
            f"{int(indices.min())} to {int(indices.max())} for {experts} experts"
        )
    return Tally(served, dropped, skipped, identity)


def routed_output(layer: MoeLayer, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """The routed output [token, model] from the slots alone, in the precision of x."""
    counted = tally(layer, indices, weights)
    out = torch.where(counted.identity, weights, 0).sum(-1, keepdim=True).to(x.dtype) * x
    for index, token, slot in counted.by_expert(indices):
        expert = layer.expert(index).to(x.dtype)
        out.index_add_(0, token, expert(x[token]) * weights[token, slot, None].to(x.dtype))
    return out


def tolerance(dtype: torch.dtype, top_k: int) -> float:
    """How far a recomputed output may be from the model's own in this precision, relative in Frobenius norm.

    Eager experts add up k outputs in the model's own precision, so half precision drifts with the root of k: measured
    0.008 at k = 32, 0.010 at 64 and 0.015 at 128 in bfloat16. A wrong expert is off by about 1.
    """
    return TOLERANCE.get(dtype) or HALF_TOLERANCE * max(1.0, (top_k / MANY) ** 0.5)


def relative_error(found: Tensor, truth: Tensor) -> float:
    """Frobenius norm of the difference relative to that of the truth: one rounded entry does not decide it."""
    return float((found - truth).norm() / truth.norm().clamp(min=torch.finfo(truth.dtype).tiny))
