"""One number per layer for how alike the router's rows are."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.cosines import Form, off_diagonal, row_cosines
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_directions

Summary = Literal["mean", "rms", "largest"]
DRAWN_NUMBERS = 4_000_000


@measure(
    title="Router cosine by depth",
    question="In which layers do the router's rows point the same way?",
    unit="cosine (-1 to 1)",
    family="router",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476 (mean of raw cosines); the other choices are ours",
    axes=("layer",),
)
def router_mean_cosine(
    router_weight: Float[Tensor, "layer expert model"], *, form: Form = "raw", summary: Summary = "mean"
) -> Values:
    """Mean, root mean square or largest cosine over the pairs of router rows, per layer.

    Formula:
        m = 2 / (E (E - 1)) sum over i < j of c_ij;  c_ij = r_i . r_j / (|r_i| |r_j|)
        r_i: router row of expert i, of E (centred: minus the mean row).
        rms: root of the mean of c_ij^2. largest: the largest c_ij.

    Returns:
        One number per layer, -1 to 1, over the pairs of rows that have a length: the fewest of a layer are a fact. NaN
        where none has.

    Raises:
        Nothing of its own.

    Source:
        Ahrac, Hochwald & Geva 2026, arXiv 2605.12476.

    Caveat:
        The mean of centred cosines is close to -1/(E-1) whatever the router: take rms or largest with `centred`. The
        raw mean moves with whatever vector all rows share, which a softmax router ignores.
    """
    pairs = off_diagonal(row_cosines(router_weight.double(), form))
    values, used = _summarised(pairs, summary), (~pairs.isnan()).sum(-1)
    facts = {"mean over layers": float(values.nanmean()), "fewest pairs of a layer": int(used.min())}
    return Values(values, facts=facts, caveats=_without_length(values, used, pairs.shape[-1]))


def _without_length(values: Float[Tensor, " layer"], used: Int[Tensor, " layer"], pairs: int) -> tuple[str, ...]:
    if bool(values.isnan().any()):
        return ("NaN: fewer than two router rows of a layer have a length, so a direction.",)
    lost = pairs - int(used.min())
    if not lost:
        return ()
    return (f"Router rows of length 0 have no direction: up to {lost} of {pairs} pairs of a layer are left out.",)


@router_mean_cosine.chance
def null(
    router_weight: Float[Tensor, "layer expert model"], *, form: Form, summary: Summary, generator: torch.Generator
) -> Chance:
    """The same summary for unrelated directions in as many dimensions.

    Returns:
        Cosines: mean and central 95 % band, the same for every layer.

    Source:
        Ours: independent uniform directions, drawn.
    """
    _, experts, model = router_weight.shape
    draws = min(2000, max(100, DRAWN_NUMBERS // (experts * model)))
    drawn = _summarised(off_diagonal(row_cosines(random_directions(draws, experts, model, generator), form)), summary)
    how = f"{draws:,} draws of {experts} random directions in {model} dimensions"
    return Chance(drawn.mean(), *central_band(drawn), how)


def _summarised(pairs: Float[Tensor, "... pair"], summary: Summary) -> Float[Tensor, "*case"]:
    if summary == "rms":
        return pairs.square().nanmean(-1).sqrt()
    if summary == "mean":
        return pairs.nanmean(-1)
    return pairs.nan_to_num(-torch.inf).amax(-1).where(~pairs.isnan().all(-1), torch.nan)
