"""How far each expert's router row in one checkpoint points away from its partner's in another."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from scipy.stats import beta
from torch import Tensor

from analysis.alignment import same_width
from analysis.cosines import Form, centred_rows, unit_rows
from analysis.matching import ALONE, Partners, in_order, partners, random_pairs, told, why_alone
from analysis.measure import Chance, Inputs, Values, measure


@measure(
    title="Router row difference",
    question="Does the router look for the same tokens for an expert in b as in a?",
    unit="1 - cosine of router rows (0 to 2; 0 is the same direction, 1 unrelated)",
    family="compare",
    source="Ours: cosine of an expert's row with that of its partner",
    axes=("layer", "expert"),
    reads=("router_weight",),
)
def router_row_difference(
    a: Inputs, b: Inputs, *, form: Form = "centred", matching: Literal["router row", "identity"] = "router row"
) -> Values:
    """1 - cos of each expert's row in a and its partner's in b; `centred` takes each side's mean row away first.

    Formula:
        D_e = 1 - u_e . v_m(e) / (|u_e| |v_m(e)|);  u_e = a_e - mean_j a_j;  v_f = b_f - mean_j b_j
        a_e, b_f: router rows on either side; m(e): partner in b of expert e.
        raw: u_e = a_e, v_f = b_f.

    Returns:
        Layer by expert of a, 0 to 2. NaN for an expert without partner, or a row without direction.

    Raises:
        NotComparable: If layers or widths differ, or, for `identity`, the numbers of experts.

    Source:
        Ours.

    Caveat:
        Matched by the very rows that are compared, the pairs found are the nearest there are: that some are near says
        little, how many have a partner more. Two separately trained models have hidden states of their own, in which
        no row means what it means in the other. A row that turned need not change a route.
    """
    pairs, same = partners(a, b, matching), _rows(a, b, form)
    values = _difference(*same, pairs)
    facts = told(pairs, matching) | {"mean over experts": float(values.nanmean())}
    caveats = why_alone(pairs == ALONE)
    if bool((values.isnan() & (pairs != ALONE)).any()):
        caveats += ("NaN: a row of length 0 has no direction.",)
    return Values(values, facts=facts, caveats=caveats)


@router_row_difference.chance
def null(
    a: Inputs, b: Inputs, *, form: Form, matching: Literal["router row", "identity"], generator: torch.Generator
) -> Chance:
    """Two unrelated directions.

    Returns:
        1 and the central 95 % band, the same for all. Facts: layers whose pairs are nearer than the nearest of random
        pairs of the same rows, and its p.

    Source:
        The squared cosine of independent uniform directions is Beta(1/2, (d - 1)/2). Random pairs: ours; max-statistic
        over layers: Westfall & Young 1993.
    """
    first, second = _rows(a, b, form)
    model = first.shape[-1]
    half = math.sqrt(beta.ppf(0.95, 0.5, (model - 1) / 2)) if model > 1 else 1.0
    facts, by_layer = random_pairs(unit_rows(first) @ unit_rows(second).mT, partners(a, b, matching), generator)
    centre, low, high = (torch.tensor(x, dtype=torch.float64) for x in (1.0, 1 - half, 1 + half))
    return Chance(centre, low, high, f"two unrelated directions in {model} dimensions", facts, by_layer)


def _rows(
    a: Inputs, b: Inputs, form: Form
) -> tuple[Float[Tensor, "layer expert model"], Float[Tensor, "layer expert_b model"]]:
    same_width(a, b, "router rows")
    first, second = a.router_weight.double(), b.router_weight.double()
    return (centred_rows(first), centred_rows(second)) if form == "centred" else (first, second)


def _difference(
    first: Float[Tensor, "layer expert model"], second: Float[Tensor, "layer expert_b model"], pairs: Partners
) -> Float[Tensor, "layer expert"]:
    # 1 - cos by the chord: exact for rows that hardly turned.
    return (unit_rows(first) - in_order(pairs, unit_rows(second))).square().sum(-1) / 2
