"""Planes to look at: the same as the libraries', turned by the points alone."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness as sklearn_trustworthiness

from analysis.errors import TooFew
from analysis.projections.pca import principal_components
from analysis.projections.trust import trustworthiness
from analysis.projections.umap import umap_coordinates

POINTS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3


def test_principal_components_are_scikit_learns_up_to_sign():
    ours, share = principal_components(POINTS)
    fit = PCA(2, svd_solver="full").fit(POINTS.numpy())
    theirs = fit.transform(POINTS.numpy())
    np.testing.assert_allclose(np.abs(ours.numpy()), np.abs(theirs), atol=1e-9)
    np.testing.assert_allclose(share.numpy(), fit.explained_variance_ratio_, atol=1e-12)


def test_the_sign_does_not_depend_on_the_order_of_points_or_features():
    generator = torch.Generator().manual_seed(1)
    rows, columns = torch.randperm(20, generator=generator), torch.randperm(6, generator=generator)
    plain, _ = principal_components(POINTS)
    shuffled, _ = principal_components(POINTS[rows][:, columns])
    torch.testing.assert_close(shuffled, plain[rows], rtol=0, atol=1e-9)


def test_points_on_a_line_have_no_second_coordinate():
    line = torch.arange(5, dtype=torch.float64)[:, None] * torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    plane, share = principal_components(line)
    torch.testing.assert_close(plane[:, 1], torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(share[0]) == pytest.approx(1)
    torch.testing.assert_close(plane[:, 0].abs().sort().values[-1], torch.tensor(10.0, dtype=torch.float64))


def test_trustworthiness_is_scikit_learns_and_undefined_for_three_points():
    distances = torch.cdist(POINTS, POINTS)
    plane, _ = principal_components(POINTS)
    expected = sklearn_trustworthiness(POINTS.numpy(), plane.numpy(), n_neighbors=5)
    assert trustworthiness(distances, plane, 5) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(trustworthiness(distances[:3, :3], plane[:3], 5))
    assert trustworthiness(distances, POINTS, 15) == pytest.approx(1)


def test_umap_of_four_points_is_refused():
    with pytest.raises(TooFew, match="4 different points"):
        umap_coordinates(torch.zeros(4, 4), 15, 0)
