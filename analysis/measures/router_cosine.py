"""How alike the directions are that the router gives its experts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import Form, common_mode, off_diagonal, row_cosines
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_directions

PAIRS = 20_000
ZERO_ROW = "NaN: a router row of length 0 has no direction."


@measure(
    title="Router cosines",
    question="How alike are the router's rows?",
    unit="cosine (-1 to 1)",
    family="router",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476 (raw); the centred form is ours",
    axes=("layer", "expert", "expert_b"),
)
def router_cosine(router_weight: Float[Tensor, "layer expert model"], *, form: Form = "raw") -> Values:
    """Cosine between the router rows of every two experts, per layer.

    `raw` as published; `centred` after taking away the layer's mean row.

    Formula:
        C_ij = r_i . r_j / (|r_i| |r_j|)
        r_i: router row of expert i. centred: r_i - (1/E) sum_e r_e in its place.

    Returns:
        Layer by expert by expert, -1 to 1; the diagonal is 1. NaN where a row has length 0.

    Raises:
        Nothing of its own.

    Source:
        Ahrac, Hochwald & Geva 2026, arXiv 2605.12476.

    Caveat:
        Adding one vector to all rows changes nothing a softmax router does, but every raw cosine: the raw mean is
        largely the shared row. The mean of centred cosines is close to -1/(E-1) whatever the router; look at its rms
        and maximum.
    """
    rows = router_weight.double()
    cosines = row_cosines(rows, form)
    pairs = off_diagonal(cosines)
    facts = {
        "mean over pairs": float(pairs.nanmean()),
        "rms over pairs": float(pairs.square().nanmean().sqrt()),
        "largest": float(pairs[~pairs.isnan()].max()) if bool((~pairs.isnan()).any()) else float("nan"),
        "common-mode share": float(common_mode(rows).nanmean()),
        "pairs": int((~pairs.isnan()).sum()),
    }
    return Values(cosines, facts=facts, caveats=(ZERO_ROW,) if bool(cosines.isnan().any()) else ())


@router_cosine.chance
def null(router_weight: Float[Tensor, "layer expert model"], *, form: Form, generator: torch.Generator) -> Chance:
    """Cosines of unrelated directions in as many dimensions.

    Returns:
        Cosines: mean and central 95 % band for two different experts, 1 on the diagonal.

    Source:
        Ours: pairs of independent uniform directions, drawn.
    """
    _, experts, model = router_weight.shape
    draws = max(1, 2 * PAIRS // (experts * (experts - 1)))
    drawn = off_diagonal(row_cosines(random_directions(draws, experts, model, generator), form)).flatten()
    same = torch.eye(experts, dtype=torch.bool)
    low, high = central_band(drawn)
    mean, low, high = (torch.where(same, torch.ones(()).double(), value) for value in (drawn.mean(), low, high))
    return Chance(mean, low, high, f"{len(drawn):,} pairs of random directions in {model} dimensions")
