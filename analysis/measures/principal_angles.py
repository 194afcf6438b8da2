"""The whole list of angles behind a distance: a few shared directions, or a little of everything."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis import beside
from analysis.cosines import off_diagonal
from analysis.linalg import orthonormal
from analysis.manifolds.grassmann import all_pair_angles, geodesic
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_rows
from analysis.result import Axis, Reason
from analysis.statistic import State
from analysis.subspaces import (
    AxisCount,
    Reading,
    bases,
    bases_beside,
    cut,
    row_counts,
    said,
    shared_rows,
    why_nan,
)

Pair = Literal["mean", "nearest", "farthest", "shared"]
NO_SHARED = "no shared expert serves every token of this model beside the routed ones"
DRAWS, FEWEST = 1000, 200
_DRAWN_ANGLES = 200_000
_HELD_NUMBERS = 1_000_000  # of the random rows, at a time


@measure(
    title="Principal angles",
    question="Do experts share a few directions, or a little of all of them?",
    unit="radians (0 to pi/2)",
    family="representation",
    source="Björck & Golub 1973, Math. Comp. 27; of routed inputs: Liu 2026, arXiv 2605.16349",
    axes=("layer", "angle"),
    slow=True,  # minutes for 16 layers of 64 experts in 2,048 dimensions
)
def principal_angles(
    routed_rows: State,
    common_rows: State,
    *,
    n: AxisCount = 10,
    pair: Pair = "mean",
    weighting: Reading = "scaled",
    matched: bool = True,
) -> Values:
    """Principal angles between the spans of the first n principal axes of two experts' inputs, smallest first.

    `mean` averages each angle over all pairs of routed experts of a layer; `nearest` and `farthest` are the angles of
    the pair of them with the smallest and the largest Grassmann distance; `shared` averages over the pairs of a routed
    expert and the shared one, whose inputs are those of all tokens, its g the gate on its output, 1 without one.

    Inputs are g x (`scaled`), x counted g times (`weighted`), x (`plain`), or g x of all tokens, 0 where the expert did
    not serve (`zeros`; the source does not say which: a guess).

    Formula:
        theta_i = mean over pairs e < f of theta_i(e, f);  cos theta_i(e, f) = i-th singular value of U_e'U_f
        U_e: first n principal axes (n at most half of d) of the covariance of g x, x the sampled inputs that e served.

    Returns:
        Layer by angle, 0 to pi/2, rising. NaN for a layer with fewer than two experts that have enough rows; `shared`
        in a model without a shared expert.

    Raises:
        BadKnob: If n is below 1.

    Source:
        Björck & Golub 1973; Liu 2026, arXiv 2605.16349, for the subspaces.

    Caveat:
        The smallest of several angles is well under a right angle even between unrelated subspaces: compare with the
        band, which is that of a mean over pairs of them. It is narrow, and experts that share tokens, or a few strong
        directions of all inputs, lie below it for that reason alone. The nearest of many pairs is near by selection. A
        shared expert has a share in everyone's tokens.
    """
    shape = routed_rows.shape
    size = cut(row_counts(routed_rows), n, shape.model, matched)
    spans = bases_beside(routed_rows, shared_rows(common_rows), size, weighting)
    layers = [_of_pairs(all_pair_angles(span), shape.experts, pair) for span in spans]
    values = torch.stack([_of_layer(angles, pair) for angles in layers])
    pairs = sum(int((~angles.isnan().any(-1)).sum()) for angles in layers)
    known = ~spans.isnan().flatten(2).any(-1)
    axes = (
        Axis("layer", shape.layers),
        Axis("angle", tuple(str(i + 1) for i in range(size.axes))),
    )
    rows = size.rows if matched else f"{size.least} to {size.rows}"
    facts: dict[str, int | float | str] = {"axes": size.axes, "rows per expert": rows, "pairs": pairs}
    caveats = why_nan(known, size) + said(size, n, matched)
    if pair == "shared" and not shape.shared:
        caveats = (f"NaN: {NO_SHARED}.", *caveats)
    return Values(values, axes, caveats, facts, {"bases": spans.float()})


@principal_angles.chance
def null(
    routed_rows: State,
    common_rows: State,
    *,
    n: int,
    pair: Pair,
    weighting: Reading,
    matched: bool,
    generator: torch.Generator,
) -> Chance | Reason:
    """Angles between as many independent uniformly random subspaces as a layer has experts, averaged over their pairs.

    Returns:
        Mean and central 95 % band of each mean angle, layer by layer; NaN for a layer with fewer than two known
        experts. None for a pair that was selected for its distance. `shared`: means over the pairs of one of them.

    Source:
        Ours, drawn. A mean over pairs is far narrower than one pair, and pairs that share an expert are not independent
        of each other, so whole layers are drawn.
    """
    if pair in ("nearest", "farthest"):
        return Reason(f"the {pair} of all pairs is so by selection; the mean over pairs has a band")
    if pair == "shared" and not routed_rows.shape.shared:
        return Reason(NO_SHARED)
    model = routed_rows.shape.model
    size = cut(row_counts(routed_rows), n, model, matched)
    known = [int((~axes.isnan().flatten(1).any(-1)).sum()) for axes in bases(routed_rows, size, weighting)]
    most = max(known, default=0) + (pair == "shared")
    drawn = _drawn(most, size.axes, model, generator)
    layers = [drawn[:, 0, 1 : 1 + e].mean(1) if pair == "shared" else _means(drawn, e) for e in known]
    mean, low, high = (torch.stack(part) for part in zip(*[(d.mean(0), *central_band(d)) for d in layers], strict=True))
    which = "the pairs of one" if pair == "shared" else "all pairs"
    how = f"means over {which} of {most} random {size.axes}-dimensional subspaces in {model} dimensions, "
    return Chance(mean, low, high, how + f"{len(drawn):,} times")


def _drawn(experts: int, n: int, model: int, generator: torch.Generator) -> Float[Tensor, "draw expert expert n"]:
    """Angles of all pairs of random subspaces; fewer draws where pairs are many, whose mean varies the less."""
    if experts < 2:  # no pair to draw
        return torch.full((1, experts, experts, n), torch.nan, dtype=torch.float64)
    draws = min(DRAWS, max(FEWEST, _DRAWN_ANGLES // (experts * experts * n)))
    first, second = torch.triu_indices(experts, experts, 1)
    found = torch.full((draws, experts, experts, n), torch.nan, dtype=torch.float64)
    at_once = max(1, _HELD_NUMBERS // (experts * n * min(experts * n, model)))
    for start in range(0, draws, at_once):
        part = found[start : start + at_once]
        axes = orthonormal(random_rows(len(part), experts * n, model, generator).unflatten(1, (experts, n)))
        # By arccos: a band needs no small angle to its last digit.
        part[:, first, second] = torch.linalg.svdvals(axes[:, first] @ axes[:, second].mT).clamp(max=1).arccos()
    return found


def _means(drawn: Float[Tensor, "draw expert expert n"], experts: int) -> Float[Tensor, "draw n"]:
    """The mean over all pairs of the first so many subspaces of each draw."""
    first, second = torch.triu_indices(experts, experts, 1)
    return drawn[:, first, second].mean(1)  # NaN without a pair


def _of_pairs(angles: Float[Tensor, "every every angle"], experts: int, pair: Pair) -> Float[Tensor, "pair angle"]:
    """The angles of each pair of two routed experts, or of each routed expert and the shared one."""
    routed, shared, _ = beside.parted(angles.movedim(-1, 0), experts)
    return (shared.flatten(1) if pair == "shared" else off_diagonal(routed)).mT


def _of_layer(angles: Float[Tensor, "pair angle"], pair: Pair) -> Float[Tensor, " angle"]:
    known = angles[~angles.isnan().any(-1)]
    if not len(known):
        return torch.full(angles.shape[1:], torch.nan, dtype=torch.float64)
    if pair in ("mean", "shared"):
        return known.mean(0)
    distances = geodesic(known)
    return known[distances.argmin() if pair == "nearest" else distances.argmax()]
