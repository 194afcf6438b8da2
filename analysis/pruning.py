"""Keep-lists from scores of experts, how far two of them agree, and what agreement two random ones have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxtyping import Float
from scipy.stats import hypergeom
from torch import Tensor

from analysis.errors import BadKnob

Keep = tuple[tuple[int, ...], ...]
"""The experts that stay, by layer, in their own order."""


def kept_number(experts: int, top_k: int, ratio: float) -> int:
    """How many experts of a layer stay when this share is dropped.

    Returns:
        top_k to experts.

    Raises:
        BadKnob: If the share is not between 0 and 1, or leaves fewer than a token gets.

    Source:
        The same number in every layer, as in REAP (Lasby et al. 2025, arXiv 2510.13999).
    """
    right = f"each token gets {top_k} of {experts} experts: 0 to {1 - top_k / experts:g}"
    # NaN and infinity cannot be rounded, so they are told apart before there is a number of experts.
    if not 0 <= ratio < 1:
        raise BadKnob(f"ratio={ratio} is no share of the experts to drop; {right}")
    kept = experts - round(ratio * experts)
    if kept < top_k:
        raise BadKnob(f"ratio={ratio} would leave {kept}; {right}")
    return kept


def keep_list(scores: Float[Tensor, "layer expert"], kept: int) -> Keep:
    """The highest scores of each layer; an expert without a score (no tokens) goes first, ties to the lower number.

    Returns:
        `kept` experts of each layer, ascending.

    Source:
        Layer-wise pruning: REAP (Lasby et al. 2025, arXiv 2510.13999).
    """
    order = scores.double().nan_to_num(-math.inf).argsort(dim=-1, descending=True, stable=True)
    return tuple(tuple(sorted(row[:kept])) for row in order.tolist())


def overlap(one: Keep, other: Keep) -> float:
    """Mean over layers of |A and B| / |A or B|.

    Returns:
        0 to 1.

    Source:
        Jaccard 1912.
    """
    shares = [len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in zip(one, other, strict=True)]
    return sum(shares) / len(shares)


def random_overlap(experts: int, kept: int) -> float:
    """What two random keep-lists of this size have in common, on average and exactly.

    Returns:
        0 to 1; near rho / (2 - rho) for a kept share rho.

    Source:
        Hypergeometric counts.
    """
    return float(sum(hypergeom.pmf(n, experts, kept, kept) * n / (2 * kept - n) for n in range(kept + 1)))


def agreement(keeps: Sequence[Keep]) -> list[list[float]]:
    """The overlap of each with each.

    Returns:
        A symmetric table, 0 to 1, with ones on its diagonal.

    Source:
        Jaccard 1912.
    """
    return [[overlap(one, other) for other in keeps] for one in keeps]
