"""Means over tokens of what a router thought, from `router_sums`."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from analysis.statistic import State

HIDDEN = "NaN: a layer's router hides what this is made of, or no token was routed."


def per_token(router_sums: State, array: str, count: str) -> Float[Tensor, "layer ..."]:
    """A sum of all blocks over the tokens that are in it.

    Args:
        router_sums: The statistic.
        array: Name of the sum.
        count: Name of the array that counts the tokens in it.

    Returns:
        Layer means in the unit of the sum; NaN where no token is in it.

    Source:
        Ours: sums and counts add, means do not.
    """
    total, tokens = router_sums[array].sum(0).double(), router_sums[count].sum(0)
    return total / tokens.view(-1, *[1] * (total.ndim - 1))


def hidden(values: Float[Tensor, "layer ..."]) -> tuple[str, ...]:
    """The caveat that a NaN needs.

    Returns:
        One line, or none where every layer has a number.

    Source:
        Ours.
    """
    return (HIDDEN,) if bool(values.isnan().any()) else ()
