"""How many values an average is of: what is undefined is left out of it, and a reader is told of how much."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def used(values: Float[Tensor, "layer ..."], what: str) -> dict[str, int | float | str]:
    """The values that are not NaN, counted.

    Args:
        values: What is averaged, by layer.
        what: What each of them is of, in the plural: experts, pairs.

    Returns:
        Facts: 0 or more in all, and in each layer, a list where layers differ.

    Source:
        Ours.
    """
    return told((~values.isnan()).flatten(1).sum(1).tolist(), what)


def told(counts: list[int], what: str) -> dict[str, int | float | str]:
    """Counts of each layer as facts.

    Returns:
        0 or more in all, and in each layer, a list where layers differ.

    Source:
        Ours.
    """
    alike = len(set(counts)) == 1
    return {what: sum(counts), f"{what} in each layer": counts[0] if alike else ", ".join(map(str, counts))}
