"""The experts as points of a plane: near each other if they are alike in what is chosen to compare them by."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.centroids import centroids
from analysis.cosines import centred_rows, unit_rows
from analysis.jacobians import probes
from analysis.knob import Seed
from analysis.measure import Values, measure
from analysis.projections.plane import Method, Neighbours, axis_labels, plane
from analysis.result import Axis
from analysis.slopes import mean_jacobians
from analysis.slots import Layered
from analysis.statistic import State

Features = Literal["centroid", "router_row", "output", "jacobian"]
PROBES = 4


@measure(
    title="Expert map",
    question="Which experts are alike, within a layer and across layers?",
    unit="coordinates (no unit)",
    family="specialisation",
    source="Ours; features after Ahrac et al. 2026, arXiv 2605.12476, and Liu 2026, arXiv 2605.16349",
    axes=("expert", "coordinate"),
    interval="see trustworthiness",
    null="coordinates have no chance value; see trustworthiness",
    slow_if={"method": "umap"},
)
def expert_embedding(
    centroid_sums: State,
    output_sums: State,
    slope_sums: State,
    router_weight: Float[Tensor, "layer expert model"],
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    *,
    features: Features = "centroid",
    method: Method = "pca",
    centred: bool = True,
    neighbours: Neighbours = 15,
    seed: Seed = 0,
) -> Values:
    """Two coordinates per expert of every layer, from the directions of its features.

    `centroid`: mean of the tokens it served; `router_row`; `output`: sum of what it gave for the common tokens;
    `jacobian`: its mean Jacobian, seen through 4 fixed directions. `centred` takes the mean over the layer's experts
    away first. A shared expert has no point: every token goes there, so it has no row and no centroid of its own. `mds`
    keeps angles as well as a plane can, `pca` is a shadow, `umap` keeps neighbours.

    Formula:
        z_e = u_e / |u_e|;  u_e = c_e - mean over the layer's experts of c;  c_e = mean of x over the tokens e served
        The two coordinates are the first principal components of the z_e of all layers together; x: router input. Other
        features in place of c_e; mds: classical scaling of the angles between z_e; umap: their neighbours.

    Returns:
        Expert by coordinate, layer by layer, any number, without unit. NaN for an expert without tokens, or that is its
        layer's mean.

    Raises:
        TooFew: If fewer than two experts differ (five for UMAP).
        BadKnob: If `neighbours` is below 2 or `seed` not 0 to 2**32 - 1.

    Source:
        Ours; centroids and router rows: Ahrac et al. 2026; mean Jacobians: Liu 2026.

    Caveat:
        Layers have spaces of their own: nearness across layers means that directions of the residual stream agree, no
        more. UMAP keeps neighbours only. Read the trustworthiness before any gap or cluster.
    """
    if features == "router_row":
        rows = router_weight.double()
    elif features == "centroid":
        rows = centroids(centroid_sums, "plain")
    elif features == "output":
        rows = output_sums["common_output"].sum(0)
    else:
        rows = _sketches(slope_sums, (gate_weight, up_weight, down_weight))
    points = unit_rows(_centred(rows) if centred else rows).flatten(0, 1)
    flat, facts = plane(points, method, neighbours, seed)
    experts = rows.shape[1]
    labels = tuple(f"{layer}/E{e}" for layer in centroid_sums.shape.layers for e in range(experts))
    groups = tuple(layer for layer in centroid_sums.shape.layers for _ in range(experts))
    caveats = ()
    if bool(flat.isnan().any()):
        caveats = ("NaN: an expert without tokens, or whose features are those of its layer's mean.",)
    axes = (Axis("expert", labels, groups), Axis("coordinate", axis_labels(method)))
    return Values(flat, axes, caveats, facts | {"features": rows.shape[-1]})


def _centred(rows: Float[Tensor, "layer expert feature"]) -> Float[Tensor, "layer expert feature"]:
    """Minus the mean of the experts that have features, so that one without tokens takes no other with it."""
    found = torch.full_like(rows, torch.nan)
    for layer, own in enumerate(rows):
        known = ~own.isnan().any(-1)
        if bool(known.any()):
            found[layer, known] = centred_rows(own[known])
    return found


def _sketches(slope_sums: State, weights: tuple[Layered, Layered, Layered]) -> Float[Tensor, "layer expert feature"]:
    directions = probes(slope_sums.shape.model, PROBES)
    layers = [
        jacobians.along(directions).double().flatten(1) for jacobians in mean_jacobians(slope_sums, weights, "common")
    ]
    return torch.stack(layers)
