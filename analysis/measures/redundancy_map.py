"""Which experts do the same thing, and which only see the same tokens."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.centroids import centroids
from analysis.cosines import off_diagonal, row_cosines
from analysis.errors import BadKnob
from analysis.jacobians import Method, cosines, directions, products, scatter
from analysis.knob import Range
from analysis.manifolds.grassmann import all_pair_overlaps, overlap, random_angles
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_directions
from analysis.result import Axis
from analysis.slopes import mean_jacobians, token_counts, without_tokens
from analysis.slots import Layered
from analysis.statistic import State
from analysis.subspaces import AxisCount, bases, cut, row_counts, why_nan

Representation = Literal["subspace overlap", "centroid cosine"]

NAMED = 5
_PAIRS = 20_000
_SUBSPACES = 2000


@measure(
    title="Redundancy map",
    question="Which pairs of experts do the same thing, and which only see the same tokens?",
    unit="y: cosine (-1 to 1); x: share of directions (0 to 1) or cosine",
    family="function",
    source="Liu 2026, arXiv 2605.16349: overlapping representations are no redundancy, so both are asked; the map and "
    "its threshold are ours",
    axes=("pair", "coordinate"),
    interval="points are in the order of their alignment: intervals are those of the two measures it is made of",
    slow=True,
)
def redundancy_map(
    slope_sums: State,
    centroid_sums: State,
    routed_rows: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    *,
    representation: Representation = "subspace overlap",
    n: AxisCount = 10,
    layer: Annotated[int, Range(-1)] = -1,
    threshold: Annotated[float, Range(-1, 1)] = 0.5,
    method: Method = "auto",
) -> Values:
    """One point per pair of experts of a layer: how alike what reaches them is (x) and what they do to it (y).

    x: `subspace overlap` of the first n principal axes of their inputs times g, from equally many sampled rows (10 is a
    guess), or `centroid cosine` of the mean tokens they served, minus the mean of all tokens. y: Jacobian alignment
    over the common tokens. `layer` counts MoE layers from 0; -1 shows all. Points are in the order of y, the most alike
    first, layer by layer. A pair is a candidate for merging if y reaches `threshold`, which is a guess; x is evidence
    beside it. Pairs are of routed experts: a shared one serves every token and is no candidate.

    Formula:
        x_ef = |U_e'U_f|_F^2 / n;  y_ef = tr(J_e'J_f) / (|J_e|_F |J_f|_F)
        U_e: first n principal axes (n at most half of d) of the covariance of g x over equally many sampled inputs of
        e. J_e: mean Jacobian over the common tokens. centroid cosine: x of the mean served inputs, centred.

    Returns:
        Pair by coordinate, -1 to 1. NaN where an expert has too few tokens.

    Raises:
        BadKnob: If there is no such layer, n is below 1 or `threshold` is not between -1 and 1.

    Source:
        Ours, after Liu 2026, arXiv 2605.16349.

    Caveat:
        High x and low y is the usual case: experts share tokens and treat them differently. A candidate is a reason to
        look, not to merge: mean Jacobians say nothing of biases, of what differs from token to token, or of the router.
    """
    labels = slope_sums.shape.layers
    if layer >= len(labels):
        raise BadKnob(f"layer={layer}; layers are 0 to {len(labels) - 1} or -1 for all of them")
    weights = (gate_weight, up_weight, down_weight)
    near, unknown = _near(centroid_sums, routed_rows, representation, n)
    points, names = [], []
    first, second = torch.triu_indices(slope_sums.shape.experts, slope_sums.shape.experts, 1).tolist()
    for row, jacobians in enumerate(mean_jacobians(slope_sums, weights, "common")):
        if layer in (-1, row):
            alike = off_diagonal(cosines(products(jacobians, method)[0]))
            order = alike.nan_to_num(-math.inf).argsort(descending=True, stable=True).tolist()
            points.append(torch.stack([near[row], alike], -1)[order])
            names += [f"{labels[row]}/E{first[pair]}-E{second[pair]}" for pair in order]
    plane = torch.cat(points)
    axes = (Axis("pair", tuple(names)), Axis("coordinate", (representation, "Jacobian alignment")))
    caveats = unknown or without_tokens(token_counts(slope_sums, "common"))
    flat = ("NaN: a centroid or a mean Jacobian of 0 has no direction.",) if bool(plane.isnan().any()) else ()
    return Values(plane, axes, caveats or flat, _candidates(plane, names, threshold, representation))


@redundancy_map.chance
def null(
    slope_sums: State,
    centroid_sums: State,
    routed_rows: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    *,
    representation: Representation,
    n: int,
    layer: int,
    threshold: float,
    method: Method,
    generator: torch.Generator,
) -> Chance:
    """x: random subspaces, or centroids under blind routing; y: independent random experts.

    Centred centroids of blindly drawn tokens point apart like random directions minus their mean.

    Returns:
        Mean and 95 % band per coordinate, the same for all pairs.

    Source:
        Ours: x drawn, tokens taken to scatter alike in all directions; y has sd 1/d where the experts' gate and up
        projections are unrelated, 1/sqrt(dp) where p probes see them.
    """
    experts, model = slope_sums.shape.experts, slope_sums.shape.model
    draws = max(1, 2 * _PAIRS // (experts * (experts - 1)))
    if representation == "centroid cosine":
        drawn = off_diagonal(row_cosines(random_directions(draws, experts, model, generator), "centred")).flatten()
    else:
        axes = cut(row_counts(routed_rows), n, model, matched=True).axes
        drawn = overlap(random_angles(axes, model, _SUBSPACES, generator))
    x = (drawn.mean(), *central_band(drawn))
    spread, _ = scatter(model, directions(model, [slope_sums.shape.hidden] * experts, method))
    y = (torch.tensor(number, dtype=torch.float64) for number in (0.0, -1.96 * spread, 1.96 * spread))
    centre, low, high = (torch.stack(both) for both in zip(x, y, strict=True))
    what = "random subspaces" if representation == "subspace overlap" else "centroids of blind routing"
    return Chance(centre, low, high, f"{len(drawn):,} pairs of {what}; independent random experts")


def _near(
    centroid_sums: State, routed_rows: State, representation: Representation, n: int
) -> tuple[Float[Tensor, "layer pair"], tuple[str, ...]]:
    """How alike what reaches two experts is, and why it is unknown where it is."""
    if representation == "centroid cosine":
        found = off_diagonal(row_cosines(centroids(centroid_sums, "centred"), "raw"))
        return found, without_tokens(centroid_sums["served"].sum(0))
    size = cut(row_counts(routed_rows), n, routed_rows.shape.model, matched=True)
    shared = all_pair_overlaps(bases(routed_rows, size, "scaled"))
    return off_diagonal(shared), why_nan(~shared.diagonal(dim1=-2, dim2=-1).isnan(), size)


def _candidates(
    plane: Float[Tensor, "pair 2"], names: list[str], threshold: float, representation: Representation
) -> dict[str, int | float | str]:
    alike = plane[:, 1].nan_to_num(-math.inf)
    facts: dict[str, int | float | str] = {
        "pairs": int((~plane.isnan().any(-1)).sum()),
        "merge candidates": int((alike >= threshold).sum()),
    }
    for rank, pair in enumerate(alike.argsort(descending=True, stable=True)[:NAMED].tolist()):
        if alike[pair] >= threshold:
            near, same = plane[pair].tolist()
            facts[f"candidate {rank + 1}"] = f"{names[pair]}: alignment {same:.2f}, {representation} {near:.2f}"
    return facts
