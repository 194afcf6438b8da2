"""Angles between subspaces: against scipy, where arccos fails, at planted angles, and for unrelated subspaces."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from analysis.linalg import gram, orthonormal, principal_axes
from analysis.manifolds.grassmann import (
    all_pair_angles,
    all_pair_overlaps,
    cross_angles,
    geodesic,
    overlap,
    principal_angles,
    random_angles,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def basis(n, model, seed=0):
    return orthonormal(torch.randn(n, model, dtype=torch.float64, generator=generator(seed)))


def tilted(start, angles, seed=1):
    """A basis whose principal angles with `start` are these: cos u + sin v, v orthogonal to the whole of it."""
    n, model = start.shape
    other = torch.randn(n, model, dtype=torch.float64, generator=generator(seed))
    v = orthonormal(other - (other @ start.mT) @ start)
    angles = torch.as_tensor(angles, dtype=torch.float64).expand(n)
    return angles.cos()[:, None] * start + angles.sin()[:, None] * v


def turned(rows, seed=2):
    """The same subspace in another basis."""
    return orthonormal(torch.randn(len(rows), len(rows), dtype=torch.float64, generator=generator(seed))) @ rows


@pytest.mark.parametrize(("n", "m", "model"), [(1, 1, 2), (3, 3, 7), (10, 10, 64), (8, 3, 40), (3, 8, 40), (5, 5, 8)])
def test_random_subspaces_have_scipys_angles(n, m, model):
    a, b = basis(n, model), basis(m, model, seed=1)
    expected = np.sort(subspace_angles(a.numpy().T, b.numpy().T))
    np.testing.assert_allclose(principal_angles(a, b), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9, 1e-12])
def test_nearly_equal_subspaces_have_scipys_angles(size):
    a = basis(6, 50)
    planted = size * torch.linspace(0.1, 1, 6, dtype=torch.float64)
    b = turned(tilted(a, planted))
    expected = np.sort(subspace_angles(a.numpy().T, b.numpy().T))
    np.testing.assert_allclose(principal_angles(a, b), expected, rtol=0, atol=3e-15)
    np.testing.assert_allclose(principal_angles(a, b), planted, rtol=0, atol=3e-15)


def test_tiny_middling_and_right_angles_stand_side_by_side():
    planted = torch.tensor([0.0, 1e-12, 1e-7, 1e-3, 0.14, 0.15, 0.8, 1.5, math.pi / 2], dtype=torch.float64)
    a = basis(9, 60)
    found = principal_angles(a, turned(tilted(a, planted)))
    torch.testing.assert_close(found, planted, rtol=0, atol=5e-15)


# Angle, float32 and float64: the largest errors of Björck-Golub, and of arccos, on 8 equal angles in 512 dimensions.
TABLE = [
    (1e-8, (7.6e-7, 2.1e-17), (1.0e-3, 1.0e-8)),
    (1e-6, (1.3e-7, 2.6e-17), (7.7e-4, 4.9e-10)),
    (1e-4, (1.1e-8, 2.0e-17), (7.5e-4, 6.9e-12)),
    (1e-2, (7.7e-9, 1.2e-17), (4.1e-5, 3.5e-14)),
    (1.0, (1.2e-7, 6.7e-16), (1.2e-7, 6.7e-16)),
]


@pytest.mark.parametrize(("angle", "ours", "arccos"), TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_table_of_errors_holds_to_a_factor_of_ten(angle, ours, arccos, dtype):
    column = (torch.float32, torch.float64).index(dtype)
    a = basis(8, 512).to(dtype)
    b = tilted(basis(8, 512), angle).to(dtype)
    error = float((principal_angles(a, b) - angle).abs().max())
    assert error <= 10 * ours[column]
    plain = torch.linalg.svdvals(a @ b.mT).clamp(max=1).arccos()
    if angle < 1:
        assert float((plain - angle).abs().max()) >= arccos[column] / 10


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_one_subspace_in_two_bases_is_at_no_distance_from_itself(dtype, most):
    a = basis(10, 2048)
    b = turned(a)
    assert float(geodesic(principal_angles(a.to(dtype), b.to(dtype)))) < most
    assert float(overlap(principal_angles(a, b))) == pytest.approx(1, abs=1e-14)


def test_orthogonal_subspaces_are_as_far_as_can_be():
    axes = torch.eye(30, dtype=torch.float64)
    angles = principal_angles(axes[:10], axes[10:20])
    assert float(geodesic(angles)) == pytest.approx(math.sqrt(10) * math.pi / 2, abs=1e-12)
    assert float(overlap(angles)) == pytest.approx(0, abs=1e-15)


def test_a_subspace_is_at_no_angle_to_one_that_holds_it():
    axes = basis(9, 40)
    assert float(principal_angles(turned(axes[:4]), turned(axes)).max()) < 1e-14
    assert float(principal_angles(turned(axes), turned(axes[:4])).max()) < 1e-14


def test_all_pairs_are_the_pairs_one_by_one():
    first, mixed = basis(6, 80), torch.tensor([1e-9, 1e-5, 0.01, 0.2, 1.0, 1.4], dtype=torch.float64)
    four = [first, basis(6, 80, seed=3), tilted(first, mixed), turned(basis(6, 80, seed=3))]
    bases = torch.stack([*four, torch.full((6, 80), torch.nan).double()])
    found = all_pair_angles(bases)
    assert found[4].isnan().all() and found[:, 4].isnan().all()
    for e in range(4):
        assert (found[e, e] == 0).all()
        for f in set(range(4)) - {e}:
            expected = np.sort(subspace_angles(bases[e].numpy().T, bases[f].numpy().T))
            # scipy 1.17 picks the branch by an unreversed mask: beside large angles its small ones come from arccos.
            np.testing.assert_allclose(found[e, f], expected, rtol=0, atol=1e-13 if {e, f} != {0, 2} else 1e-7)
    torch.testing.assert_close(found[0, 2], mixed, rtol=0, atol=5e-15)


def test_two_families_are_compared_one_by_one():
    a = torch.stack([basis(4, 30), basis(4, 30, seed=1), torch.full((4, 30), torch.nan).double()])
    b = torch.stack([turned(basis(4, 30)), tilted(basis(4, 30), 0.01)])
    found = cross_angles(a, b)
    assert found[2].isnan().all() and not found[:2].isnan().any()
    for e in range(2):
        for f in range(2):
            torch.testing.assert_close(found[e, f], principal_angles(a[e], b[f]), rtol=0, atol=1e-13)
    assert float(found[0, 0].max()) < 1e-14
    assert cross_angles(a[2:], b).isnan().all()


def test_overlaps_need_no_angles():
    bases = torch.stack([basis(4, 30), basis(4, 30, seed=1), tilted(basis(4, 30), 0.3), basis(4, 30) * torch.nan])
    found = all_pair_overlaps(torch.stack([bases, bases.flip(0)]))
    torch.testing.assert_close(found[0], overlap(all_pair_angles(bases)), rtol=0, atol=1e-14, equal_nan=True)
    torch.testing.assert_close(found[1], found[0].flip(0, 1), rtol=0, atol=1e-14, equal_nan=True)
    assert float(found[0, 0, 2]) == pytest.approx(math.cos(0.3) ** 2, abs=1e-14)


def test_a_single_known_subspace_has_no_pairs():
    bases = torch.stack([basis(2, 5), torch.full((2, 5), torch.nan).double()])
    assert all_pair_angles(bases).isnan().sum() == 3 * 2


def test_unrelated_subspaces_are_where_theory_puts_them():
    angles = random_angles(10, 2048, 4000, generator())
    distance, shared = geodesic(angles), overlap(angles)
    assert float(distance.mean()) == pytest.approx(4.785, abs=0.01)
    assert float(distance.std()) == pytest.approx(0.0138, abs=0.001)
    assert float(shared.mean()) == pytest.approx(10 / 2048, rel=0.01)


@pytest.mark.parametrize(
    ("model", "n", "distance"),
    [(256, 10, 4.46), (2048, 5, 3.42), (2048, 20, 6.66), (2048, 50, 10.18), (4096, 10, 4.84)],
)
def test_the_published_distances_of_unrelated_subspaces(model, n, distance):
    drawn = geodesic(random_angles(n, model, 300, generator()))
    # Published as the mean of twelve.
    assert float(drawn.mean()) == pytest.approx(distance, abs=0.005 + 2 * float(drawn.std()) / 12**0.5)


def test_drawn_angles_are_those_of_drawn_subspaces():
    drawn = random_angles(3, 8, 4000, generator())
    pairs = orthonormal(torch.randn(4000, 2, 3, 8, dtype=torch.float64, generator=generator(1)))
    made = principal_angles(pairs[:, 0], pairs[:, 1])
    torch.testing.assert_close(drawn.mean(0), made.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.quantile(0.05, 0), made.quantile(0.05, 0), rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.std(0), made.std(0), rtol=0, atol=0.02)


def test_grams_are_products_of_all_pairs():
    rows = torch.randn(2, 3, 7, 20, generator=generator())
    torch.testing.assert_close(gram(rows), rows.double() @ rows.double().mT, rtol=0, atol=1e-13)


@pytest.mark.parametrize("model", [12, 200])
def test_principal_axes_are_those_of_the_weighted_covariance(model):
    rows = torch.randn(3, 30, model, dtype=torch.float64, generator=generator()) * torch.linspace(1, 3, model)
    weights = torch.rand(3, 30, dtype=torch.float64, generator=generator(1))
    weights[:, :4] = 0
    found = principal_axes(rows, weights, 4)
    for e in range(3):
        covariance = np.cov(rows[e].numpy().T, aweights=weights[e].numpy(), ddof=0)
        values, vectors = np.linalg.eigh(covariance)
        kept = min(25, model)
        np.testing.assert_allclose(found.variances[e, :kept], values[::-1][:kept], rtol=1e-9)
        angles = principal_angles(found.axes[e], torch.from_numpy(vectors[:, ::-1][:, :4].T.copy()))
        assert float(angles.max()) < 1e-10
    assert found.rank.tolist() == [min(25, model)] * 3


def test_axes_stay_orthonormal_when_variances_span_ten_decades():
    scale = torch.logspace(0, -5, 30).double()
    rows = (torch.randn(60, 30, dtype=torch.float64, generator=generator()) * scale) @ basis(30, 300, seed=1)
    axes = principal_axes(rows, torch.ones(60).double(), 30).axes
    torch.testing.assert_close(axes @ axes.mT, torch.eye(30).double(), rtol=0, atol=1e-13)


def test_directions_past_the_rank_are_not_made_up():
    rows = torch.randn(40, 3, dtype=torch.float64, generator=generator()) @ basis(3, 100)
    found = principal_axes(rows, torch.ones(40).double(), 5)
    assert int(found.rank) == 3
    assert not found.axes[:3].isnan().any() and found.axes[3:].isnan().all()
    assert (found.variances[3:] == 0).all()
    still = principal_axes(torch.ones(4, 9).double(), torch.ones(4).double(), 2)
    assert int(still.rank) == 0 and still.axes.isnan().all()


def test_few_leading_axes_are_those_of_the_whole_decomposition():
    """Equal variances included, which inverse iteration must tell apart."""
    turn, scale = basis(60, 60), torch.tensor([4.0] * 3 + [2.0] * 4 + [1.0] * 20 + [0.1] * 33, dtype=torch.float64)
    columns = orthonormal(torch.cat([torch.ones(1, 90), torch.randn(60, 90, generator=generator())]).double())[1:]
    rows = columns.mT * scale @ turn
    few, many = (principal_axes(rows, torch.ones(90).double(), n) for n in (7, 60))
    torch.testing.assert_close(few.variances, many.variances, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(few.variances * 90, scale.square(), rtol=1e-12, atol=1e-14)
    for axes in (few.axes, many.axes[:7]):
        assert float(principal_angles(axes, turn[:7]).max()) < 1e-12
        assert float(principal_angles(axes[:3], turn[:3]).max()) < 1e-12
    torch.testing.assert_close(few.axes @ few.axes.mT, torch.eye(7).double(), rtol=0, atol=1e-14)


def test_no_sets_of_rows_have_no_axes():
    found = principal_axes(torch.ones(0, 9, 20), torch.ones(0, 9), 3)
    assert found.axes.shape == (0, 3, 20) and found.variances.shape == (0, 9) and found.rank.shape == (0,)
