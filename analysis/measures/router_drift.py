"""How far a router moved between two checkpoints."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import Form, centred_rows, unit_rows
from analysis.errors import NotComparable
from analysis.loads import over_layers
from analysis.matching import Partners, random_pairs
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import central_band, random_rows

What = Literal["direction", "relative"]
DRAWN_NUMBERS = 4_000_000


@measure(
    title="Router drift",
    question="How far did each layer's router move from a to b?",
    unit="1 - cosine (0 to 2), or share of the size of a (0 or more)",
    family="router",
    source="Ours: cosine of each row with itself at another step, and the relative Frobenius distance",
    axes=("layer",),
    reads=("router_weight",),
)
def router_drift(a: Inputs, b: Inputs, *, what: What = "direction", form: Form = "centred") -> Values:
    """`direction`: mean over experts of 1 - cos(row in a, row in b). `relative`: |R_b - R_a|_F / |R_a|_F.

    `centred` takes each side's mean row away first.

    Formula:
        D = mean_e (1 - u_e . v_e / (|u_e| |v_e|));  u_e = a_e - mean_j a_j;  v_e = b_e - mean_j b_j
        a_e, b_e: router row of expert e on either side; rows without a direction are left out.
        raw: u_e = a_e, v_e = b_e. relative: D = |V - U|_F / |U|_F, the rows of U and V being u_e and v_e.

    Returns:
        One number per layer: 0 (unmoved) to 2 (`direction`; 1 is unrelated), or 0 or more (`relative`). NaN where no
        row has a direction.

    Raises:
        NotComparable: If layers, experts or widths differ.

    Source:
        Ours.

    Caveat:
        Expert 3 of one run is not expert 3 of another: between separately trained runs this is near that of unrelated
        rows whatever they learned. Between steps of one run the numbering holds. A drift in direction need not change
        a route. Weights are no sample, so any drift above 0 is one; the p asks the other way round, whether rows of one
        number are nearer than rows paired at random.
    """
    first, second = _rows(a, b)
    values, used = _drift(first, second, what, form)
    facts = over_layers(values, a.shape.layers, "highest") | {"rows": int(used.sum())}
    caveats = ("NaN: no row of the layer has a direction.",) if bool(values.isnan().any()) else ()
    return Values(values, facts=facts, caveats=caveats)


@router_drift.chance
def null(a: Inputs, b: Inputs, *, what: What, form: Form, generator: torch.Generator) -> Chance:
    """The drift to an unrelated router: random directions with the lengths that the rows have on each side.

    Returns:
        Mean and central 95 % band per layer. Facts: layers whose rows are nearer than the nearest of the same rows
        paired at random, and its p; the p of each layer, corrected for all.

    Source:
        Ours: independent uniform directions, drawn. Random pairs: Fisher 1935; max-statistic over layers: Westfall &
        Young 1993.
    """
    first, second = _rows(a, b)
    facts, by_layer = random_pairs(_likeness(first, second, what, form), _own_number(first), generator)
    experts, model = first.shape[1:]
    draws = min(1000, max(100, DRAWN_NUMBERS // (4 * experts**2)))
    unit = unit_rows(random_rows(draws, 2 * experts, model, generator))
    # In the order of their lengths in a: which expert has which length cannot matter.
    lengths, order = first.norm(dim=-1).sort(-1)
    others = second.norm(dim=-1).gather(-1, order)
    drawn = []
    for mine, theirs in zip(lengths, others, strict=True):
        pair = unit[:, :experts] * mine[:, None], unit[:, experts:] * theirs[:, None]
        drawn.append(_drift(*pair, what, form)[0])
    found = torch.stack(drawn, 1)
    how = f"{draws} pairs of {experts} unrelated directions in {model} dimensions, with the lengths of the rows"
    return Chance(found.mean(0), *central_band(found), how, facts, by_layer[:, 0])


def _rows(a: Inputs, b: Inputs) -> tuple[Float[Tensor, "layer expert model"], Float[Tensor, "layer expert model"]]:
    sides = tuple((side.shape.layers, side.shape.experts, side.shape.model) for side in (a, b))
    if sides[0] != sides[1]:
        said = [
            f"{len(layers)} MoE layers of {experts} experts in {model} dimensions" for layers, experts, model in sides
        ]
        raise NotComparable(f"a has {said[0]}, b has {said[1]}; layers, experts and width must be the same")
    return a.router_weight.double(), b.router_weight.double()


def _own_number(rows: Float[Tensor, "layer expert model"]) -> Partners:
    return torch.arange(rows.shape[1]).expand(rows.shape[:2])


def _likeness(
    a: Float[Tensor, "layer expert model"], b: Float[Tensor, "layer expert model"], what: What, form: Form
) -> Float[Tensor, "layer expert expert_b"]:
    """What of a pair of rows enters the drift and depends on who is paired with whom: cosine, or inner product."""
    if form == "centred":
        a, b = centred_rows(a), centred_rows(b)
    return a @ b.mT if what == "relative" else unit_rows(a) @ unit_rows(b).mT


def _drift(
    a: Float[Tensor, "case expert model"], b: Float[Tensor, "case expert model"], what: What, form: Form
) -> tuple[Float[Tensor, " case"], Float[Tensor, " case"]]:
    """The drift of each case and how many rows are in it."""
    if form == "centred":
        a, b = centred_rows(a), centred_rows(b)
    if what == "relative":
        moved = (b - a).norm(dim=(-1, -2)) / a.norm(dim=(-1, -2))
        return moved, torch.full_like(moved, a.shape[1])
    # 1 - cos by the chord: exact for rows that hardly turned.
    turned = (unit_rows(a) - unit_rows(b)).square().sum(-1) / 2
    return turned.nanmean(-1), (~turned.isnan()).sum(-1).double()
