"""Points of many dimensions on a plane, by the method asked for, with what says how far to trust it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.errors import TooFew
from analysis.knob import Range
from analysis.projections.mds import classical_scaling
from analysis.projections.pca import principal_components
from analysis.projections.trust import trustworthiness
from analysis.projections.umap import umap_coordinates

Method = Literal["pca", "umap", "mds"]
Neighbours = Annotated[int, Range(2)]


def plane(
    points: Float[Tensor, "point feature"], method: Method, neighbours: int, seed: int
) -> tuple[Float[Tensor, "point coordinate"], dict[str, int | float | str]]:
    """Two coordinates per point; points that are the same are one. A point with a NaN has none.

    Args:
        points: Features, in a space where Euclidean distance means something.
        method: `pca`: the shadow with the most variance; `mds`: classical scaling of the angles under which the points
            are seen from the origin; `umap`: neighbours only.
        neighbours: For trustworthiness and UMAP.
        seed: Of UMAP.

    Returns:
        Coordinates; facts: points shown, different points, trustworthiness, shares of the axes.

    Raises:
        TooFew: If fewer than two points differ (five for UMAP).

    Source:
        Pearson 1901; Torgerson 1952; McInnes et al. 2018, arXiv 1802.03426.
    """
    known = ~points.isnan().any(-1)
    flat = torch.full((len(points), 2), torch.nan, dtype=torch.float64)
    facts: dict[str, int | float | str] = {"points shown": int(known.sum())}
    if not bool(known.any()):
        return flat, facts
    different, member = _distinct(_turned(points[known]))
    if len(different) < 2:
        raise TooFew(f"all {int(known.sum())} points are the same: there is nothing to spread over a plane")
    coordinates, found = _placed(different, method, neighbours, seed)
    flat[known] = coordinates[member]
    return flat, facts | {"different points": len(different)} | found


def axis_labels(method: Method) -> tuple[str, str]:
    """What the two axes are called.

    Returns:
        Two labels.

    Source:
        Ours.
    """
    name = {"pca": "PC", "umap": "UMAP", "mds": "MDS"}[method]
    return f"{name} 1", f"{name} 2"


def _placed(
    points: Float[Tensor, "point feature"], method: Method, neighbours: int, seed: int
) -> tuple[Float[Tensor, "point coordinate"], dict[str, int | float | str]]:
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    facts: dict[str, int | float | str] = {}
    if method == "umap":
        coordinates = umap_coordinates(distances, neighbours, seed)
        return coordinates, {"trustworthiness": trustworthiness(distances, coordinates, neighbours)}
    if method == "mds":
        unit = points / points.norm(dim=-1, keepdim=True)
        chords = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
        distances = 2 * (chords / 2).clamp(max=1).arcsin()
        coordinates, share = classical_scaling(distances)
    else:
        coordinates, share = principal_components(points)
    facts |= {f"variance on {name}": float(part) for name, part in zip(axis_labels(method), share, strict=True)}
    return coordinates, {"trustworthiness": trustworthiness(distances, coordinates, neighbours)} | facts


def _turned(points: Float[Tensor, "point feature"]) -> Float[Tensor, "point direction"]:
    """The same points in a frame of no more directions than there are points: every distance and norm is kept."""
    return points if points.shape[1] <= len(points) else torch.linalg.qr(points.mT, mode="r").R.mT


def _distinct(
    points: Float[Tensor, "point feature"],
) -> tuple[Float[Tensor, "different feature"], Int[Tensor, " point"]]:
    # By distance and not by bits: the same features can differ in their last digit.
    near = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") < 1e-9
    first = near.int().argmax(-1)
    keep, member = first.unique(return_inverse=True)
    return points[keep], member
