"""The prompts as points of a plane: near each other if they use the same experts."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.errors import BadKnob, TooFew
from analysis.measure import Values, measure
from analysis.projections.pca import principal_components
from analysis.projections.trust import trustworthiness
from analysis.projections.umap import umap_coordinates
from analysis.result import Axis
from analysis.signatures import Weighting, directions, said, signatures
from analysis.statistic import State

Method = Literal["pca", "umap"]


@measure(
    title="Signature map",
    question="Do prompts gather by what they are about?",
    unit="coordinates (no unit)",
    family="routing",
    source="Signatures: Avinash 2026, arXiv 2603.11114; PCA: Pearson 1901; UMAP: McInnes et al. 2018, arXiv 1802.03426",
    axes=("prompt", "coordinate"),
    interval="see trustworthiness",
    null="coordinates have no chance value; see trustworthiness",
    slow_if={"method": "umap"},
)
def signature_embedding(
    prompt_counts: State,
    *,
    method: Method = "pca",
    weighting: Weighting = "auto",
    centred: bool = False,
    neighbours: int = 15,
    seed: int = 0,
) -> Values:
    """Two coordinates per prompt, from the signatures' directions in all layers side by side.

    Squared distance in that space is 2 L (1 - signature similarity), so the map and the similarity speak of the same
    thing. Prompts with the same signature are one point.

    Returns:
        Prompt by coordinate, without unit. NaN for a prompt without tokens.

    Raises:
        TooFew: If fewer than two prompts differ (five for UMAP).
        BadKnob: If `neighbours` is below 2 or `seed` below 0.

    Source:
        Avinash 2026, arXiv 2603.11114, for the signatures.

    Caveat:
        UMAP keeps neighbours only: distances between clusters, their sizes and gaps mean nothing. Read the
        trustworthiness, and PCA beside it. The seed decides the layout.
    """
    if neighbours < 2 or seed < 0:
        raise BadKnob(f"neighbours={neighbours}, seed={seed}; neighbours starts at 2, seed at 0")
    shares = signatures(prompt_counts, weighting)
    points = directions(shares, centred).transpose(0, 1).flatten(1)
    known = ~points.isnan().any(-1)
    plane = torch.full((len(points), 2), torch.nan, dtype=torch.float64)
    facts: dict[str, int | float | str] = {"prompts shown": int(known.sum())}
    if bool(known.any()):
        distinct, member = _distinct(points[known])
        flat, found = _plane(distinct, method, neighbours, seed)
        plane[known] = flat[member]
        facts |= {"different signatures": len(distinct)} | found
    prompts = prompt_counts.prompts
    axes = (Axis("prompt", prompts.ids, prompts.categories), Axis("coordinate", _labels(method)))
    caveats = said(prompt_counts, weighting, shares)
    if not bool(known.all()) and not caveats:
        caveats = ("NaN: a prompt that equals the mean of all prompts has no centred signature.",)
    return Values(plane, axes, caveats, facts)


def _labels(method: Method) -> tuple[str, str]:
    return ("PC 1", "PC 2") if method == "pca" else ("UMAP 1", "UMAP 2")


def _plane(
    points: Float[Tensor, "point feature"], method: Method, neighbours: int, seed: int
) -> tuple[Float[Tensor, "point coordinate"], dict[str, int | float | str]]:
    if len(points) < 2:
        raise TooFew("all prompts have the same signature: there is nothing to spread over a plane")
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    facts: dict[str, int | float | str] = {}
    if method == "pca":
        plane, share = principal_components(points)
        facts |= {"variance on PC 1": float(share[0]), "variance on PC 2": float(share[1])}
    else:
        plane = umap_coordinates(distances, neighbours, seed)
    return plane, {"trustworthiness": trustworthiness(distances, plane, neighbours)} | facts


def _distinct(
    points: Float[Tensor, "point feature"],
) -> tuple[Float[Tensor, "different feature"], Int[Tensor, " point"]]:
    # By distance and not by bits: the same signature can differ in its last digit.
    near = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") < 1e-9
    first = near.int().argmax(-1)
    keep, member = first.unique(return_inverse=True)
    return points[keep], member
