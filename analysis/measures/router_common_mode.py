"""How much of a router's rows is one shared vector."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import common_mode
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_directions

DRAWN_NUMBERS = 2_000_000


@measure(
    title="Common mode of the router",
    question="How much of the router's rows is one vector that all experts share?",
    unit="share of energy (0 to 1)",
    family="router",
    source="Ours, to read the raw cosines of Ahrac, Hochwald & Geva 2026, arXiv 2605.12476",
    axes=("layer",),
)
def router_common_mode(router_weight: Float[Tensor, "layer expert model"]) -> Values:
    """E |mean row|^2 over the sum of |row|^2, per layer.

    Formula:
        m = E |q|^2 / sum_e |r_e|^2;  q = (1/E) sum_e r_e
        r_e: router row of expert e, of E experts.

    Returns:
        One number per layer, 0 (rows cancel) to 1 (all rows the same). NaN if all rows are zero.

    Raises:
        Nothing of its own.

    Source:
        Ours: the part of the rows that a softmax router cannot use, and that raises every raw cosine.

    Caveat:
        For softmax routers it has no effect on routing; for sigmoid routers it moves the combine weights.
    """
    shares = common_mode(router_weight.double())
    caveats = ("NaN: all router rows of the layer are zero.",) if bool(shares.isnan().any()) else ()
    return Values(shares, facts={"mean over layers": float(shares.nanmean())}, caveats=caveats)


@router_common_mode.chance
def null(router_weight: Float[Tensor, "layer expert model"], *, generator: torch.Generator) -> Chance:
    """The common-mode share of unrelated rows of equal expected length.

    Returns:
        Shares: mean (1/E) and central 95 % band, the same for every layer.

    Source:
        Ours: independent normal rows, drawn.
    """
    _, experts, model = router_weight.shape
    draws = min(2000, max(100, DRAWN_NUMBERS // (experts * model)))
    drawn = common_mode(random_directions(draws, experts, model, generator))
    return Chance(
        drawn.mean(), *central_band(drawn), f"{draws:,} draws of {experts} unrelated rows in {model} dimensions"
    )
