"""How far apart the subspaces lie in which different experts' inputs vary."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analysis import beside
from analysis.cosines import off_diagonal
from analysis.manifolds.grassmann import all_pair_angles, geodesic, random_angles
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.statistic import State
from analysis.subspaces import (
    GAP,
    AxisCount,
    Reading,
    Split,
    bases,
    cut,
    principal,
    row_counts,
    said,
    shared_rows,
    split_half,
    why_nan,
)

Form = Literal["raw", "normalised", "score"]
DRAWS = 2000


class Unrelated(NamedTuple):
    """Distance of random subspaces: its mean, and below which the nearest 2.5 % lie."""

    mean: float
    low: float


@measure(
    title="Grassmann distance",
    question="Do different experts see different parts of the input space?",
    unit="radians (0 to sqrt(n) pi/2); share of that maximum if normalised; about 0 to 1 as a score",
    family="representation",
    source="Liu 2026, arXiv 2605.16349; n is not stated there, so it is a choice here",
    axes=("layer", "expert", "expert_b"),
    slow=True,  # minutes for 16 layers of 64 experts in 2,048 dimensions
)
def grassmann_distance(
    routed_rows: State,
    common_rows: State,
    *,
    n: AxisCount = 10,
    weighting: Reading = "scaled",
    form: Form = "raw",
    matched: bool = True,
) -> Values:
    """Geodesic distance sqrt(sum theta^2) between the spans of the first n principal axes of two experts' inputs.

    `scaled` analyses g x, as published; `weighted` counts x g times; `plain` leaves g out; `zeros` analyses g x of all
    tokens, 0 where the expert did not serve (the source does not say which of the two it takes, so the default is a
    guess). `normalised` divides by sqrt(n) pi/2. `score` is (D - floor) / (random - floor) on halves of the prompts: 0
    is as far as two halves of one expert's tokens, 1 is unrelated; none where the floor reaches the central 95 % of
    unrelated subspaces. `matched` takes equally many rows of every expert. A shared expert has the last row: its inputs
    are those of all tokens, its g the gate on its output, 1 without one.

    Formula:
        D_ef = sqrt(sum_i theta_i^2);  cos theta_i = i-th singular value of U_e'U_f
        U_e: first n principal axes (n at most half of d) of the covariance of g x, x the sampled inputs that e served.
        normalised: D / (sqrt(n) pi/2). score: (D - floor) / (random - floor), both from two halves of the prompts.

    Returns:
        Layer by expert by expert, 0 on the diagonal; 0 to sqrt(n) pi/2 radians, 0 to 1 if normalised, about 0 to 1 as a
        score (beyond by noise). NaN for an expert with too few rows, in all or for a score in a half; a score also
        where the floor is not below what is random. Where a shared expert serves every token, E + 1 by E + 1, that one
        last; means over pairs leave it out and have it as a fact.

    Raises:
        BadKnob: If n is below 1.

    Source:
        Liu 2026, arXiv 2605.16349; angles: Björck & Golub 1973; floor and score: ours.

    Caveat:
        Unrelated subspaces are not at the maximum, and few rows put any two subspaces apart: read a distance between
        the split-half floor and random, or take the score. Its interval is about twice too wide in simulations: with a
        block of prompts left out, fewer rows put everything farther apart too. Where rows are many for the axes it is
        right: with 160 for 2 axes of 5 dimensions it held 96 % of the time (333 simulations). Experts that share tokens
        are nearer for that reason, and a shared expert has a share in everyone's.
    """
    shape, shared = routed_rows.shape, shared_rows(common_rows)
    size = cut(row_counts(routed_rows), n, shape.model, matched)
    layers = list(principal(routed_rows, size, weighting))
    spans = torch.stack([found.axes for found in layers])
    if shared is not None:
        spans = torch.cat([spans, bases(shared, size, weighting)], 1)
    distances = torch.stack([geodesic(all_pair_angles(span)) for span in spans])
    known = ~distances.diagonal(dim1=-2, dim2=-1).isnan()
    caveats = why_nan(known, size) + said(size, n, matched)
    values = distances / _unit(form, size.axes)
    if form == "score":
        split = split_half(routed_rows, n, weighting, geodesic, matched, shared)
        values = _score(split.between, split, _unrelated(size.axes, shape.model))
        caveats += _why_no_score(values, split, known)
    pairs = off_diagonal(beside.parted(values, shape.experts)[0])
    facts: dict[str, int | float | str] = {
        "axes": size.axes,
        "rows per expert": size.rows if matched else f"{size.least} to {size.rows}",
        "mean over pairs": float(pairs.nanmean()),
        "pairs": int((~pairs.isnan()).sum()),
        f"experts whose axes end without a gap (ratio under {GAP})": sum(
            _no_gap(f.variances, size.axes) for f in layers
        ),
    }
    facts |= beside.fact(values, shape.experts)
    return Values(values, caveats=caveats, facts=facts, arrays={"bases": spans.float()})


@grassmann_distance.chance
def null(
    routed_rows: State,
    common_rows: State,
    *,
    n: int,
    weighting: Reading,
    form: Form,
    matched: bool,
    generator: torch.Generator,
) -> Chance:
    """Distances of independent uniformly random subspaces.

    Returns:
        Mean and central 95 % band, 0 on the diagonal. Facts: `random`, `split-half floor`, `score between` (mean over
        pairs) and the rows of a half.

    Source:
        Random: ours, drawn from the matrix-variate Beta. Floor: ours.
    """
    model = routed_rows.shape.model
    axes = cut(row_counts(routed_rows), n, model, matched).axes
    drawn = geodesic(random_angles(axes, model, DRAWS, generator))
    split = split_half(routed_rows, n, weighting, geodesic, matched, shared_rows(common_rows))
    same = torch.eye(beside.count(routed_rows.shape), dtype=torch.bool)
    bounds = (drawn.mean(), *central_band(drawn))
    unrelated = _unrelated(axes, model)
    if form == "score":
        bounds = tuple(_score(bound.expand_as(split.between), split, unrelated) for bound in bounds)
    mean, low, high = (torch.where(same, 0.0, bound / _unit(form, axes)) for bound in bounds)
    score, experts = _score(split.between, split, unrelated), routed_rows.shape.experts
    facts = {
        "random": float(drawn.mean()) / _unit(form, axes),
        "split-half floor": float(split.within[:, :experts].nanmean()) / _unit(form, axes),
        "score between": float(off_diagonal(beside.parted(score, experts)[0]).nanmean()),
        "rows per half": split.rows,
    }
    return Chance(
        mean, low, high, f"{DRAWS:,} pairs of random {axes}-dimensional subspaces in {model} dimensions", facts
    )


def _unit(form: Form, axes: int) -> float:
    return math.sqrt(axes) * math.pi / 2 if form == "normalised" else 1.0


def _unrelated(axes: int, model: int) -> Unrelated:
    # Needed before any generator is given: the same draws whatever the question.
    drawn = geodesic(random_angles(axes, model, DRAWS, torch.Generator().manual_seed(0)))
    return Unrelated(float(drawn.mean()), float(central_band(drawn)[0]))


def _score(
    distances: Float[Tensor, "layer expert expert"], split: Split, unrelated: Unrelated
) -> Float[Tensor, "layer expert expert"]:
    floor = _floor(split)
    # A floor among the random ones leaves a difference of noise to divide by.
    score = torch.where(floor < unrelated.low, (distances - floor) / (unrelated.mean - floor), torch.nan)
    same = torch.eye(score.shape[-1], dtype=torch.bool) & ~floor.isnan()
    return torch.where(same, 0.0, score)


def _floor(split: Split) -> Float[Tensor, "layer expert expert"]:
    return (split.within[:, :, None] + split.within[:, None, :]) / 2


def _why_no_score(
    score: Float[Tensor, "layer expert expert"], split: Split, known: Bool[Tensor, "layer expert"]
) -> tuple[str, ...]:
    caveats, lost = (), split.within.isnan() & known
    if bool(lost.any()):
        count = f"{int(lost.sum())} of {lost.numel()}"
        caveats += (f"NaN: {count} experts have too few sampled rows in a half of prompts.",)
    pairs = ~off_diagonal(_floor(split)).isnan()
    if near := int((pairs & off_diagonal(score).isnan()).sum()):
        count = f"{near} of {int(pairs.sum())}"
        caveats += (f"NaN: in {count} pairs two halves of an expert's tokens are as far apart as unrelated subspaces.",)
    return caveats


def _no_gap(variances: Float[Tensor, "expert direction"], axes: int) -> int:
    if variances.shape[-1] <= axes:
        return 0
    return int((variances[:, axes - 1] < GAP * variances[:, axes]).sum())
