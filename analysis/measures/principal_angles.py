"""The whole list of angles behind a distance: a few shared directions, or a little of everything."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import off_diagonal
from analysis.manifolds.grassmann import all_pair_angles, geodesic, random_angles
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.result import Axis, Reason
from analysis.statistic import State
from analysis.subspaces import Weighting, bases, cut, row_counts, said, why_nan

Pair = Literal["mean", "nearest", "farthest"]
DRAWS = 2000


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
    routed_rows: State, *, n: int = 10, pair: Pair = "mean", weighting: Weighting = "scaled", matched: bool = True
) -> Values:
    """Principal angles between the spans of the first n principal axes of two experts' inputs, smallest first.

    `mean` averages each angle over all pairs of a layer; `nearest` and `farthest` are the angles of the pair with the
    smallest and the largest Grassmann distance.

    Formula:
        theta_i = mean over pairs e < f of theta_i(e, f);  cos theta_i(e, f) = i-th singular value of U_e'U_f
        U_e: first n principal axes (n at most half of d) of the covariance of g x, x the sampled inputs that e served.

    Returns:
        Layer by angle, 0 to pi/2, rising. NaN for a layer with fewer than two experts that have enough rows.

    Raises:
        BadKnob: If n is below 1.

    Source:
        Björck & Golub 1973; Liu 2026, arXiv 2605.16349, for the subspaces.

    Caveat:
        The smallest of several angles is well under a right angle even between unrelated subspaces, and the nearest of
        many pairs is near by selection: compare with the band, which is that of one random pair.
    """
    size = cut(row_counts(routed_rows), n, routed_rows.shape.model, matched)
    layers = [all_pair_angles(axes) for axes in bases(routed_rows, size, weighting)]
    values = torch.stack([_of_layer(off_diagonal(angles.movedim(-1, 0)).mT, pair) for angles in layers])
    pairs = sum(int((~off_diagonal(angles[..., 0]).isnan()).sum()) for angles in layers)
    known = torch.stack([~angles[..., 0].diagonal().isnan() for angles in layers])
    axes = (
        Axis("layer", routed_rows.shape.layers),
        Axis("angle", tuple(str(i + 1) for i in range(size.axes))),
    )
    rows = size.rows if matched else f"{size.least} to {size.rows}"
    facts: dict[str, int | float | str] = {"axes": size.axes, "rows per expert": rows, "pairs": pairs}
    return Values(values, axes, why_nan(known, size) + said(size, n, matched), facts)


@principal_angles.chance
def null(
    routed_rows: State, *, n: int, pair: Pair, weighting: Weighting, matched: bool, generator: torch.Generator
) -> Chance | Reason:
    """Angles of one pair of independent uniformly random subspaces.

    Returns:
        Mean and central 95 % band of each angle; none for a pair that was selected for its distance.

    Source:
        Ours, drawn from the matrix-variate Beta.
    """
    if pair != "mean":
        return Reason(f"the {pair} of all pairs is so by selection; the mean over pairs has a band")
    model = routed_rows.shape.model
    axes = cut(row_counts(routed_rows), n, model, matched).axes
    drawn = random_angles(axes, model, DRAWS, generator)
    how = f"{DRAWS:,} pairs of random {axes}-dimensional subspaces in {model} dimensions"
    return Chance(drawn.mean(0), *central_band(drawn), how)


def _of_layer(angles: Float[Tensor, "pair angle"], pair: Pair) -> Float[Tensor, " angle"]:
    known = angles[~angles.isnan().any(-1)]
    if not len(known):
        return torch.full(angles.shape[1:], torch.nan, dtype=torch.float64)
    if pair == "mean":
        return known.mean(0)
    distances = geodesic(known)
    return known[distances.argmin() if pair == "nearest" else distances.argmax()]
