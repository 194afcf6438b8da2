"""How far the inputs of an expert moved to another subspace from one checkpoint to another."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.alignment import same_width
from analysis.exchange import apart, moved
from analysis.manifolds.grassmann import geodesic, random_angles
from analysis.matching import ALONE, Matching, Partners, in_order, partners, told, why_alone
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import central_band
from analysis.subspaces import AxisCount, Cut, Weighting, bases, cut, halves, row_counts, said, why_nan

DRAWS, _PER_AXIS_OF_HALF = 2000, 2


@measure(
    title="Subspace drift",
    question="Does an expert of b see the part of the input space that its counterpart in a sees?",
    unit="radians (0 to sqrt(n) pi/2; 0 is the same subspace)",
    family="compare",
    source="Subspaces of routed inputs: Liu 2026, arXiv 2605.16349; between two checkpoints: ours",
    axes=("layer", "expert"),
    reads=("routed_rows", "token_routes"),
    slow=True,  # principal axes of both sides' experts, and of both halves of each
)
def subspace_drift(
    a: Inputs, b: Inputs, *, n: AxisCount = 10, weighting: Weighting = "scaled", matching: Matching = "co-selection"
) -> Values:
    """Geodesic distance between the first n principal axes of the inputs of an expert of a and of its partner in b.

    From equally many sampled rows of every expert of both sides. `scaled` analyses g x, `weighted` counts x g times,
    `plain` leaves the combine weight g out.

    Formula:
        D_e = sqrt(sum_i theta_i^2);  cos theta_i = i-th singular value of U_e'V_m(e)
        U_e: first n principal axes (n at most half of d) of the covariance of g x, x the sampled inputs that e served.
        V_f: the same of expert f of b; m(e): partner in b of expert e.

    Returns:
        Layer by expert of a, 0 to sqrt(n) pi/2. NaN for an expert without partner or with too few rows.

    Raises:
        NotComparable: If layers, widths or (`identity`) numbers of experts differ, or no tokens end together.
        BadKnob: If n is below 1.

    Source:
        Liu 2026, arXiv 2605.16349; angles: Bjorck & Golub 1973; halves: ours.

    Caveat:
        Few rows put any two subspaces apart: two facts are of the same number of rows, of different prompts, between
        the sides and between two halves of one side's tokens. Only what the first has above the second moved. Its
        interval is too wide where rows are few: with a block of prompts left out, everything is farther apart. The p
        asks whether any expert moved at all: it is 1/128 at least, after all 127 exchanges of blocks of prompts; where
        experts are many fewer are tried (19, so 1/20 at least), since each costs two subspaces an expert.
    """
    model = same_width(a, b, "subspaces")
    pairs = partners(a, b, matching)
    size = _size((a, b), n, model)
    first, second = (bases(side.routed_rows, size, weighting) for side in (a, b))
    values = apart(first, in_order(pairs, second))
    lost = torch.cat([first, second], 1).flatten(2).isnan().any(-1)
    facts: dict[str, int | float | str] = told(pairs, matching) | {
        "axes": size.axes,
        "rows per expert": size.rows,
        "mean over experts": float(values.nanmean()),
    }
    return Values(values, facts=facts, caveats=why_alone(pairs == ALONE) + why_nan(~lost, size) + said(size, n, True))


@subspace_drift.chance
def null(
    a: Inputs, b: Inputs, *, n: int, weighting: Weighting, matching: Matching, generator: torch.Generator
) -> Chance:
    """Distances of independent uniformly random subspaces.

    Returns:
        Mean and central 95 % band, the same for all: where unrelated experts lie. Facts: layers that moved beyond what
        sides show that exchanged blocks of prompts, and the p of that; mean distances of two halves of the prompts,
        within one side and between both, and how many experts are farther apart between them.

    Source:
        Absil, Edelman & Koev 2006, drawn from the matrix-variate Beta. Exchange: Fisher 1935. Halves: ours.
    """
    model = same_width(a, b, "subspaces")
    axes = _size((a, b), n, model).axes
    drawn = geodesic(random_angles(axes, model, DRAWS, generator))
    how = f"{DRAWS:,} pairs of random {axes}-dimensional subspaces in {model} dimensions"
    within, between = _halves(a, b, partners(a, b, matching), n, weighting)
    both = ~(between - within).isnan()
    facts, by_layer = moved((a, b), partners(a, b, matching), n, weighting, generator)
    facts |= {
        "between halves of one side": float(within[both].mean()),
        "between halves of both sides": float(between[both].mean()),
        "experts farther apart than their own halves": f"{int((between > within).sum())} of {int(both.sum())}",
    }
    return Chance(drawn.mean(), *central_band(drawn), how, facts, by_layer)


def _size(sides: tuple[Inputs, ...], n: int, model: int) -> Cut:
    return cut(torch.cat([row_counts(side.routed_rows) for side in sides], -1), n, model, True)


def _halves(
    a: Inputs, b: Inputs, pairs: Partners, n: int, weighting: Weighting
) -> tuple[Float[Tensor, "layer expert"], Float[Tensor, "layer expert"]]:
    """How far half of an expert's prompts lie from the other half: of the same side, and of its partner's."""
    parts = halves(a.routed_rows)
    counts = [row_counts(side.routed_rows, part) for side in (a, b) for part in parts]
    size = cut(torch.cat(counts, -1), n, a.shape.model, True, _PER_AXIS_OF_HALF)
    own = [bases(a.routed_rows, size, weighting, part) for part in parts]
    other = [in_order(pairs, bases(b.routed_rows, size, weighting, part)) for part in parts]
    within = (apart(own[0], own[1]) + apart(other[0], other[1])) / 2
    return within, (apart(own[0], other[1]) + apart(other[0], own[1])) / 2
