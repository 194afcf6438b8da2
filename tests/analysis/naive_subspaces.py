"""Inputs of experts: their principal axes by numpy's SVD, the angles between them, and maps by principal components."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.analysis.naive_experts import jacobian_alignment
from tests.analysis.naive_world import LAYERS, Plain, bfloat16, by_expert, by_layer, float32, pairs, table

AXES = 2
"""Half of five dimensions."""
KEPT, PER_AXIS = 160, 4


def smallest(*worlds: Plain):
    """Rows of each expert: as many as the smallest has of those with 4 an axis, or the median where that is less."""
    counts = np.minimum(np.array([w.counts for w in worlds]).ravel(), KEPT)
    # The lower of two middle ones, as torch has it.
    enough = max(AXES + 1, min(PER_AXIS * AXES, int(np.sort(counts)[(len(counts) - 1) // 2])))
    return int(min(n for n in counts if n >= enough))


def rows(w: Plain, layer, e, n):
    """g x of the n tokens of lowest hash of those it served; x is kept in bfloat16, g in float32. None with too few."""
    tokens, g = w.served(layer, e)
    if len(tokens) < n:
        return None
    order = np.argsort(w.hash[tokens])[:n]
    return bfloat16(w.x[layer, tokens])[order] * float32(g)[order, None]


@cache
def axes(w: Plain, layer, e, n):
    """The two leading axes; None for an expert with too few rows, or rows that span fewer directions."""
    found = rows(w, layer, e, n)
    if found is None:
        return None
    _, sizes, axes = np.linalg.svd(found - found.mean(0), full_matrices=False)
    return axes[:AXES] if sizes[AXES - 1] > 1e-7 * sizes[0] else None


def angles(u, v):
    """Rising, by sine and cosine together: accurate at either end."""
    if u is None or v is None:
        return np.full(AXES, np.nan)
    cosines = np.linalg.svd(u @ v.T, compute_uv=False)
    sines = np.linalg.svd(v - v @ u.T @ u, compute_uv=False)[::-1]
    return np.arctan2(sines, cosines)


def _angles(w: Plain):
    n = smallest(w)
    return table(lambda i, e, f: angles(axes(w, i, e, n), axes(w, i, f, n)))


def grassmann_distance(w: Plain):
    return np.sqrt((_angles(w) ** 2).sum(-1))


def principal_angles(w: Plain):
    every = _angles(w)
    return by_layer(lambda i: np.nanmean([every[i, e, f] for e, f in pairs()], 0))


def subspace_overlap(w: Plain):
    return (np.cos(_angles(w)) ** 2).mean(-1)


def routed_spectrum(w: Plain):
    """Share of the first two variances of g x."""
    n = smallest(w)

    def share(layer, e):
        found = rows(w, layer, e, n)
        if found is None:
            return np.nan
        variances = np.sort(np.linalg.eigvalsh(np.cov(found.T)))[::-1]
        return variances[:AXES].sum() / variances.sum()

    return by_expert(share)


def redundancy_map(w: Plain):
    """Overlap and alignment of each pair, the most aligned first, layer by layer."""
    near, alike = subspace_overlap(w), jacobian_alignment(w)
    points = [sorted(([near[i, e, f], alike[i, e, f]] for e, f in pairs()), key=lambda at: -at[1]) for i in LAYERS]
    return np.concatenate(points)


def centroids(w: Plain, centred=True):
    """Mean input of the tokens an expert served, minus that of all tokens."""

    def mean(layer, e):
        tokens, _ = w.served(layer, e)
        whole = w.x[layer].mean(0) if centred else 0
        return w.x[layer, tokens].mean(0) - whole if tokens else np.full(5, np.nan)

    return by_expert(mean)


def shadow(points):
    """First two principal components of the points, those that are the same counted once; a row of NaN has none.

    Axes have no sign of their own.
    """
    known = ~np.isnan(points).any(-1)
    different: list[np.ndarray] = []
    for point in points[known]:
        if all(np.linalg.norm(point - other) > 1e-9 for other in different):
            different.append(point)
    centre = np.mean(different, 0)
    _, _, axes = np.linalg.svd(different - centre, full_matrices=False)
    found = np.full((len(points), 2), np.nan)
    found[known] = (points[known] - centre) @ axes[:2].T
    return found


def expert_embedding(w: Plain):
    """Directions of the centroids of all layers, each minus its layer's mean."""
    found = centroids(w, centred=False)
    found = found - np.array([[own[~np.isnan(own).any(-1)].mean(0)] for own in found])
    sizes = np.linalg.norm(found, axis=-1, keepdims=True)
    # What rounding leaves of an expert that is its layer's mean has no direction.
    return shadow((found / np.where(sizes > 1e-12, sizes, np.nan)).reshape(-1, 5))


def signature_embedding(w: Plain):
    unit = w.shares / np.linalg.norm(w.shares, axis=-1, keepdims=True)
    return shadow(np.concatenate(unit, -1))


READINGS = {
    reading.__name__: reading
    for reading in (
        grassmann_distance,
        principal_angles,
        subspace_overlap,
        routed_spectrum,
        redundancy_map,
        expert_embedding,
        signature_embedding,
    )
}
