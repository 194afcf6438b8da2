"""UMAP: planes that repeat, few points, copies that share one, and a compiler that works once for all processes."""

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.inference import evaluate
from analysis.measure import get
from analysis.projections.umap import umap_coordinates
from analysis.result import Reason
from tests.analysis.two_tasks import planted, side_of

POINTS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3

pytestmark = pytest.mark.slow


def test_umap_repeats_for_its_seed_and_keeps_two_clusters_apart():
    cloud = torch.cat([POINTS / 10, POINTS / 10 + 50])
    distances = torch.cdist(cloud, cloud)
    one, again = (umap_coordinates(distances, 10, 3) for _ in range(2))
    assert torch.equal(one, again)
    left, right = one[:20], one[20:]
    reach = max(float(torch.cdist(half, half).max()) for half in (left, right))
    assert float(torch.cdist(left, right).min()) > 0
    assert float((left.mean(0) - right.mean(0)).norm()) > reach / 2


def test_what_a_fit_compiles_is_kept_for_the_next_process():
    umap_coordinates(torch.cdist(POINTS, POINTS), 10, 0)
    for name in ("utils.fast_knn_indices", "umap_.smooth_knn_dist", "umap_.compute_membership_strengths"):
        module, function = name.split(".")
        compiled = getattr(importlib.import_module(f"umap.{module}"), function)
        assert list(Path(compiled.stats.cache_path).glob(f"*{function}*.nbi")), name


@pytest.mark.parametrize("count", [5, 9, 12])
def test_umap_of_few_points_is_finite(count):
    distances = torch.cdist(POINTS[:count], POINTS[:count])
    assert umap_coordinates(distances, 15, 0).isfinite().all()


def test_embedded_copies_share_their_point_and_the_map_repeats(world):
    batch = planted(world)
    twin = batch.indices.clone()
    # Prompts 0 and 2 get the very same routes.
    rows = [(batch.keys.prompt == p).nonzero()[:, 0] for p in (0, 2)]
    twin[:, rows[1]] = twin[:, rows[0]]
    side = side_of(dataclasses.replace(batch, indices=twin), world)
    for method in ("pca", "umap"):
        first, second = (evaluate(get("signature_embedding"), side, {"method": method}) for _ in range(2))
        np.testing.assert_array_equal(first.values, second.values)
        ids = first.axes[0].labels
        one, other = (ids.index(f"p{p:02d}") for p in (0, 2))
        np.testing.assert_array_equal(first.values[one], first.values[other])
        assert first.facts["different points"] < 16
        assert 0 <= first.facts["trustworthiness"] <= 1
        assert first.interval == Reason("see trustworthiness")
        group = np.array(first.axes[0].groups)
        centres = [first.values[group == g].mean(0) for g in "ab"]
        spread = max(
            np.linalg.norm(first.values[group == g] - c, axis=1).mean() for g, c in zip("ab", centres, strict=True)
        )
        assert np.linalg.norm(centres[0] - centres[1]) > spread


def test_another_seed_is_another_umap_but_the_same_pca(world):
    side = world.inputs_for(get("signature_embedding"))
    for method, alike in (("pca", True), ("umap", False)):
        one, other = (evaluate(get("signature_embedding"), side, {"method": method, "seed": s}).values for s in (0, 1))
        assert np.array_equal(one, other) == alike
