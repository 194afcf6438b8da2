"""Correlation coefficients of many groups of points at once, with ties and missing points."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import kendalltau
from torch import Tensor

Coefficient = Literal["spearman", "pearson", "kendall"]
FEWEST = 3
"""Points below which a coefficient says nothing."""


def average_ranks(values: Float[Tensor, "*group point"]) -> Float[Tensor, "*group point"]:
    """Ranks from 1 within each group; equal values share the average of their ranks.

    Returns:
        1 to the number of points that are there; NaN where a value is NaN.

    Source:
        Kendall 1945, Biometrika 33 (treatment of ties).
    """
    sorted_values, order = values.sort(-1)
    place = torch.arange(values.shape[-1], dtype=torch.float64, device=values.device).expand_as(sorted_values)
    edge = torch.ones_like(sorted_values[..., :1], dtype=torch.bool)
    changes = sorted_values[..., 1:] != sorted_values[..., :-1]
    first = torch.where(torch.cat([edge, changes], -1), place, 0).cummax(-1).values
    ends = torch.where(torch.cat([changes, edge], -1), place, math.inf)
    last = ends.flip(-1).cummin(-1).values.flip(-1)
    ranks = torch.empty_like(place.contiguous()).scatter_(-1, order, (first + last) / 2 + 1)
    return ranks.masked_fill(values.isnan(), math.nan)


def correlation(
    a: Float[Tensor, "*#group point"], b: Float[Tensor, "*#group point"], coefficient: Coefficient
) -> Float[Tensor, "*group"]:
    """The coefficient of each group's points; a point counts where both values are there.

    Returns:
        -1 to 1; NaN with fewer than three points or where one side is constant.

    Source:
        Spearman 1904 (average ranks), Pearson 1895, Kendall 1945 (tau-b).
    """
    missing = a.isnan() | b.isnan()
    a, b = a.double().where(~missing, math.nan), b.double().where(~missing, math.nan)
    if coefficient == "kendall":
        pairs = zip(a.flatten(0, -2), b.flatten(0, -2), strict=True)
        return torch.stack([_tau(x, y) for x, y in pairs]).view(a.shape[:-1])
    if coefficient == "spearman":
        a, b = average_ranks(a), average_ranks(b)
    a, b = (x - x.nanmean(-1, keepdim=True) for x in (a, b))
    found = (a * b).nansum(-1) / (a.square().nansum(-1) * b.square().nansum(-1)).sqrt()
    return torch.where((~missing).sum(-1) >= FEWEST, found.clamp(-1, 1), math.nan)


def partial(
    both: Float[Tensor, "*#group"], a_third: Float[Tensor, "*#group"], b_third: Float[Tensor, "*#group"]
) -> Float[Tensor, "*group"]:
    """The coefficient that is left between a and b when what each shares with a third is taken out.

    Returns:
        -1 to 1; NaN where one of them is the third.

    Source:
        Yule 1907; for ranks and tau: Kendall 1942.
    """
    left = (1 - a_third.square()) * (1 - b_third.square())
    return torch.where(left > 0, (both - a_third * b_third) / left.sqrt(), math.nan)


def _tau(a: Float[Tensor, " point"], b: Float[Tensor, " point"]) -> Float[Tensor, ""]:
    there = ~a.isnan()
    a, b = a[there], b[there]
    if len(a) < FEWEST or bool((a == a[0]).all()) or bool((b == b[0]).all()):
        return torch.tensor(math.nan, dtype=torch.float64)
    return torch.as_tensor(np.asarray(kendalltau(a.numpy(), b.numpy()))[0], dtype=torch.float64)
