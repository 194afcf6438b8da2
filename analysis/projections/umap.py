"""UMAP: a plane that keeps neighbours, not distances. Slow to import, so only the fit imports it."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from analysis.errors import TooFew

FEWEST = 5


def umap_coordinates(
    distances: Float[Tensor, "point point"], neighbours: int, seed: int
) -> Float[Tensor, "point coordinate"]:
    """Two coordinates per point by UMAP; the same seed gives the same plane.

    Args:
        distances: Between points that are all different: duplicates would crowd out each other's neighbours.
        neighbours: Points each point looks at; cut to what there is.
        seed: Of the layout.

    Returns:
        Coordinates without unit; only who is near whom means anything.

    Raises:
        TooFew: With fewer than five points.

    Source:
        McInnes, Healy & Melville 2018, arXiv 1802.03426 (umap-learn).
    """
    count = len(distances)
    if count < FEWEST:
        raise TooFew(f"UMAP of {count} different points; it needs {FEWEST}")
    # Rounded: the layout is chaotic, and the last digit of a distance depends on the order of the experts.
    table = np.round(distances.numpy(), 9)
    with warnings.catch_warnings():
        # Two promises of umap-learn's that do not concern us: no inverse transform, and its dependencies' deprecations.
        warnings.simplefilter("ignore")
        fit = _library().UMAP(
            n_neighbors=max(2, min(neighbours, count - 1)),
            metric="precomputed",
            # The spectral start needs more points than an eigensolver wants for so few.
            init="spectral" if count > 10 else "random",
            random_state=seed,
            n_jobs=1,
        )
        return torch.from_numpy(np.asarray(fit.fit_transform(table), dtype=np.float64))


@cache
def _library() -> Any:
    """umap-learn, with all that a fit compiles kept on disk: of three functions it keeps nothing itself.

    They take 12 of the 13 s of a process's first plane; read back, that takes 1.3 s.
    """
    # By name: a type checker would read the compiler behind it, half a minute for one call.
    library = importlib.import_module("umap")
    graph, points = (importlib.import_module(f"umap.{name}") for name in ("umap_", "utils"))
    for function in (points.fast_knn_indices, graph.smooth_knn_dist, graph.compute_membership_strengths):
        if hasattr(function, "enable_caching"):  # not where NUMBA_DISABLE_JIT is set
            function.enable_caching()
    return library
