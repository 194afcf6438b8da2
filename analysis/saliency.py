"""Importance scores for experts, n^a mean(g^b |f|^c) and others beside them, and how far two of them agree."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from analysis.slots import BLOCKS
from analysis.statistic import State

Criterion = Literal[
    "frequency",
    "soft_count",
    "ean_sum",
    "ean_mean",
    "msan",
    "weighted_ean_sum",
    "reap",
    "ean_ca",
    "max_activation",
    "max_activation_signed",
]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)

MEMBERS: dict[Criterion, tuple[int, int, int]] = {
    "frequency": (1, 0, 0),
    "soft_count": (1, 1, 0),
    "ean_sum": (1, 0, 1),
    "ean_mean": (0, 0, 1),
    "msan": (0, 0, 2),
    "weighted_ean_sum": (1, 1, 1),
    "reap": (0, 1, 1),
}
"""Exponents (a, b, c) of the members of the family that have a name."""

_SUMS = {(0, 0): "served", (1, 0): "weight", (0, 1): "norm", (0, 2): "norm_squared", (1, 1): "weighted_norm"}

_LARGEST: dict[Criterion, str] = {
    "max_activation": "component_size_max",
    "max_activation_signed": "component_max",
}


def scores(
    contribution_sums: State, output_sums: State, criterion: Criterion, blocks: range = range(BLOCKS)
) -> Float[Tensor, "layer expert"]:
    """The criterion over the served tokens of these blocks: n^a mean(g^b |f|^c), |mean f| or a largest component.

    Returns:
        0 or more, in tokens^a times output units^c; with a = 0, and outside the family, it is NaN for an expert that
        served no token.

    Source:
        Lasby et al. 2025, arXiv 2510.13999 (REAP; its code has all but MSAN); the family: ours.
    """
    rows = list(blocks)
    if criterion == "ean_ca":
        served = output_sums["served"][rows].sum(0)
        return (output_sums["output"][rows].sum(0) / served[..., None]).norm(dim=-1)
    if criterion in _LARGEST:
        largest = contribution_sums[_LARGEST[criterion]][rows].amax(0)
        return torch.where(largest == -torch.inf, torch.nan, largest.clamp(min=0))
    a, b, c = MEMBERS[criterion]
    total = contribution_sums[_SUMS[b, c]][rows].sum(0).double()
    return total if a else total / contribution_sums["served"][rows].sum(0)


def rank_agreement(one: Float[Tensor, "layer expert"], other: Float[Tensor, "layer expert"]) -> Float[Tensor, " layer"]:
    """Spearman's correlation of two orders of the experts, layer by layer, ties at their average rank.

    Returns:
        -1 to 1; NaN where fewer than three experts have both scores, or all are tied.

    Source:
        Spearman 1904.
    """
    found = []
    for left, right in zip(one, other, strict=True):
        known = ~(left.isnan() | right.isnan())
        if int(known.sum()) < 3:
            found.append(torch.nan)
            continue
        ranks = [torch.from_numpy(rankdata(scores[known].numpy())) for scores in (left, right)]
        first, second = (rank - rank.mean() for rank in ranks)
        found.append(float(first @ second / (first.norm() * second.norm())))
    return torch.tensor(found, dtype=torch.float64)
