"""The order in which a token ranked its experts, whatever order the model lists them in."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def by_rank(indices: Int[Tensor, "*case k"], weights: Float[Tensor, "*case k"]) -> Int[Tensor, "*case k"]:
    """The chosen experts, largest combine weight first; equal weights keep the model's order.

    Returns:
        Expert numbers, the same as given.

    Source:
        Ours: some routers take their top k unsorted, so the slot says nothing about the rank.
    """
    return indices.gather(-1, weights.argsort(dim=-1, descending=True, stable=True))
