"""How far a router's rows are from standing at right angles."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import row_cosines
from analysis.errors import BadKnob
from analysis.knob import Range
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_rows

DRAWN_NUMBERS = 4_000_000


@measure(
    title="Router orthogonality loss",
    question="How far are the router's rows from standing at right angles?",
    unit="loss (0 to 1 - 1/E; 0 is orthogonal)",
    family="router",
    source="ERNIE 4.5 (Baidu 2025): orthogonality loss of the router, as in its released gate",
    axes=("layer",),
)
def router_orthogonality(
    router_weight: Float[Tensor, "layer expert model"], *, groups: Annotated[int, Range(1)] = 1
) -> Values:
    """|| R R^T - I ||_F^2 / E^2 with R the rows of length 1, i.e. (1/E^2) sum over i != j of cos_ij^2.

    With `groups`, the experts fall into that many blocks of neighbours; the loss of each block, then the mean.

    Formula:
        L = |R R' - I|_F^2 / E^2 = (1/E^2) sum over i != j of (r_i . r_j)^2 / (|r_i|^2 |r_j|^2)
        R: the E router rows r_i, each of length 1. groups: L of every block of E / groups rows, then the mean.

    Returns:
        One number per layer, 0 (orthogonal) to 1 - 1/E (all rows parallel). NaN where a row has length 0.

    Raises:
        BadKnob: If `groups` does not divide the number of experts.

    Source:
        ERNIE 4.5 (Baidu 2025), moe gate; without its coefficient.

    Caveat:
        It is not 0 for unrelated rows: they have (E - 1) / (E d). A row shared by all raises it, though a softmax
        router ignores that row.
    """
    values = _loss(_grouped(router_weight.double(), groups)).mean(-1)
    caveats = ("NaN: a router row of length 0 has no direction.",) if bool(values.isnan().any()) else ()
    return Values(values, facts={"mean over layers": float(values.nanmean())}, caveats=caveats)


@router_orthogonality.chance
def null(router_weight: Float[Tensor, "layer expert model"], *, groups: int, generator: torch.Generator) -> Chance:
    """The loss of unrelated directions in as many dimensions.

    Returns:
        Mean and central 95 % band, the same for every layer.

    Source:
        Ours: independent uniform directions, drawn.
    """
    _, experts, model = router_weight.shape
    draws = min(2000, max(200, DRAWN_NUMBERS // experts**2))
    drawn = _loss(_grouped(random_rows(draws, experts, model, generator), groups)).mean(-1)
    how = f"{draws:,} draws of {experts} random directions in {model} dimensions"
    return Chance(drawn.mean(), *central_band(drawn), how)


def _grouped(rows: Float[Tensor, "case expert model"], groups: int) -> Float[Tensor, "case group row model"]:
    if rows.shape[1] % groups:
        raise BadKnob(f"groups is {groups}; right: a divisor of the {rows.shape[1]} experts")
    return rows.unflatten(1, (groups, -1))


def _loss(rows: Float[Tensor, "*case row model"]) -> Float[Tensor, "*case"]:
    cosines = row_cosines(rows, "raw")
    return (cosines - torch.eye(rows.shape[-2], dtype=cosines.dtype)).square().mean((-1, -2))
