"""How much of the space in which one expert's inputs vary is also another's."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis import beside
from analysis.cosines import off_diagonal
from analysis.manifolds.grassmann import all_pair_overlaps, overlap, random_angles
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.statistic import State
from analysis.subspaces import (
    AxisCount,
    Reading,
    bases_beside,
    cut,
    row_counts,
    said,
    shared_rows,
    split_half,
    why_nan,
)

DRAWS = 2000


@measure(
    title="Subspace overlap",
    question="How much of the directions in which their inputs vary do two experts share?",
    unit="mean squared cosine (0 orthogonal, 1 the same)",
    family="representation",
    source="Krzanowski 1979, JASA 74; of routed inputs: Liu 2026, arXiv 2605.16349",
    axes=("layer", "expert", "expert_b"),
    slow=True,  # minutes for 16 layers of 64 experts in 2,048 dimensions
)
def subspace_overlap(
    routed_rows: State,
    common_rows: State,
    *,
    n: AxisCount = 10,
    weighting: Reading = "scaled",
    matched: bool = True,
) -> Values:
    """|U'V|_F^2 / n of the first n principal axes U and V of two experts' inputs: the mean of cos^2 of their angles.

    `scaled` analyses g x, as published; `weighted` counts x g times; `plain` leaves g out; `zeros` analyses g x of all
    tokens, 0 where the expert did not serve (the source does not say which of the two it takes, so the default is a
    guess). `matched` takes equally many rows of every expert. A shared expert has the last row: its inputs are those of
    all tokens, its g the gate on its output, 1 without one.

    Formula:
        O_ef = |U_e'U_f|_F^2 / n = (1/n) sum_i cos^2 theta_i
        U_e: first n principal axes (n at most half of d) of the covariance of g x, x the sampled inputs that e served.

    Returns:
        Layer by expert by expert, 0 to 1, 1 on the diagonal. NaN for an expert with too few rows. Where a shared expert
        serves every token, E + 1 by E + 1, that one last; means over pairs leave it out and have it as a fact.

    Raises:
        BadKnob: If n is below 1.

    Source:
        Krzanowski 1979; Liu 2026, arXiv 2605.16349, for the subspaces.

    Caveat:
        Overlap of inputs is not redundancy: experts may do different things to the same directions. The ceiling is not
        1 but what two halves of one expert's tokens share (`split-half ceiling`); unrelated subspaces share n/d.
        A shared expert has a share in everyone's tokens.
    """
    shape = routed_rows.shape
    size = cut(row_counts(routed_rows), n, shape.model, matched)
    spans = bases_beside(routed_rows, shared_rows(common_rows), size, weighting)
    values = all_pair_overlaps(spans)
    pairs = off_diagonal(beside.parted(values, shape.experts)[0])
    facts: dict[str, int | float | str] = {
        "axes": size.axes,
        "rows per expert": size.rows if matched else f"{size.least} to {size.rows}",
        "mean over pairs": float(pairs.nanmean()),
        "pairs": int((~pairs.isnan()).sum()),
    } | beside.fact(values, shape.experts)
    known = ~values.diagonal(dim1=-2, dim2=-1).isnan()
    caveats = why_nan(known, size) + said(size, n, matched)
    return Values(values, caveats=caveats, facts=facts, arrays={"bases": spans.float()})


@subspace_overlap.chance
def null(
    routed_rows: State,
    common_rows: State,
    *,
    n: int,
    weighting: Reading,
    matched: bool,
    generator: torch.Generator,
) -> Chance:
    """Overlap of independent uniformly random subspaces: n/d on average.

    Returns:
        Mean and central 95 % band, 1 on the diagonal; fact `split-half ceiling`, the mean over routed experts of what
        two halves of an expert's tokens share.

    Source:
        Mean in closed form; band: ours, drawn from the matrix-variate Beta.
    """
    model = routed_rows.shape.model
    axes = cut(row_counts(routed_rows), n, model, matched).axes
    drawn = overlap(random_angles(axes, model, DRAWS, generator))
    split = split_half(routed_rows, n, weighting, overlap, matched)
    same = torch.eye(beside.count(routed_rows.shape), dtype=torch.bool)
    bounds = (torch.tensor(axes / model, dtype=torch.float64), *central_band(drawn))
    mean, low, high = (torch.where(same, _ONE, bound) for bound in bounds)
    facts = {"split-half ceiling": float(split.within.nanmean()), "rows per half": split.rows}
    return Chance(
        mean, low, high, f"{DRAWS:,} pairs of random {axes}-dimensional subspaces in {model} dimensions", facts
    )


_ONE: Tensor = torch.ones((), dtype=torch.float64)
