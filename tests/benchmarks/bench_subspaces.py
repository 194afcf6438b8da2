"""Subspaces of 64 experts: all principal angles against scipy, routed PCA against scikit-learn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from torch import Tensor

from analysis.linalg import orthonormal, principal_axes
from analysis.manifolds.grassmann import all_pair_angles, geodesic, principal_angles
from tests.benchmarks.case import Case, Race

EXPERTS, MODEL, AXES = 64, 2048, 16


def subspaces(related: bool) -> Tensor:
    """Unrelated subspaces; or such that share half their axes but for a noise that sets them 0.3 rad apart."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(EXPERTS, AXES, MODEL, dtype=torch.float64, generator=generator)
    if related:
        rows[:, : AXES // 2] = rows[0, : AXES // 2] + 0.2 * rows[:, : AXES // 2]
    return orthonormal(rows)


def by_scipy(bases: Tensor) -> np.ndarray:
    """Geodesic distances of all pairs, one pair at a time."""
    columns, found = bases.mT.numpy(), np.zeros((EXPERTS, EXPERTS))
    for e in range(EXPERTS):
        for f in range(e + 1, EXPERTS):
            found[e, f] = found[f, e] = np.sqrt((subspace_angles(columns[e], columns[f]) ** 2).sum())
    return found


def close(mine: Any, theirs: Any) -> None:
    """The same distances to 1e-9 rad."""
    assert np.allclose(mine.numpy(), theirs, rtol=0, atol=1e-9)


def grassmann(related: bool) -> Race:
    """Distances of all pairs of experts in one layer."""
    bases = subspaces(related)
    return Race(lambda: geodesic(all_pair_angles(bases)), lambda: by_scipy(bases), close)


def rows_of(count: int) -> Tensor:
    """Rows of every expert, variances falling by a power law as hidden states' do."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.arange(1, MODEL + 1, dtype=torch.float64) ** -0.5
    return torch.randn(EXPERTS, count, MODEL, dtype=torch.float64, generator=generator) * scale


def pca(count: int, solver: Literal["full", "auto"]) -> Race:
    """First 16 axes and their variances of all experts; sklearn's randomised solver only comes near them."""
    rows = rows_of(count)
    weights = torch.ones(EXPERTS, count, dtype=torch.float64)

    def theirs() -> list[PCA]:
        return [PCA(AXES, svd_solver=solver, random_state=0).fit(one) for one in rows.numpy()]

    def same(mine: Any, fits: Any) -> None:
        components = torch.from_numpy(np.stack([fit.components_ for fit in fits]))
        variances = np.stack([fit.explained_variance_ for fit in fits]) * (count - 1) / count
        np.testing.assert_allclose(mine.variances[:, :AXES], variances, rtol=1e-9 if solver == "full" else 0.05)
        assert float(principal_angles(mine.axes, components).max()) < 1e-8 or solver == "auto"

    return Race(lambda: principal_axes(rows, weights, AXES), theirs, same)


SCIPY = "loop of scipy subspace_angles"
CASES = (
    Case("all-pairs Grassmann, 64 experts, n=16", SCIPY, 20.0, lambda: grassmann(False)),
    Case("all-pairs Grassmann, n=16, experts that share 8 axes", SCIPY, 20.0, lambda: grassmann(True)),
    Case("routed PCA, 64 x 128 rows, n=16, full", "sklearn PCA, solver full", 4.0, lambda: pca(128, "full")),
    Case("routed PCA, 64 x 128 rows, n=16, auto", "sklearn PCA, solver auto", 4.0, lambda: pca(128, "auto")),
    Case("routed PCA, 64 x 512 rows, n=16, full", "sklearn PCA, solver full", None, lambda: pca(512, "full"), 1),
    Case("routed PCA, 64 x 512 rows, n=16, auto", "sklearn PCA, solver auto", None, lambda: pca(512, "auto"), 1),
)
