"""Coefficients of many groups at once, against scipy one by one."""

import numpy as np
import pytest
import torch
from scipy import stats

from analysis.correlation import average_ranks, correlation, partial

SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}


def tied(groups=4, points=30, seed=0):
    """Integers: many ties; some points missing on either side."""
    a, b = torch.randint(0, 6, (2, groups, points), generator=torch.Generator().manual_seed(seed)).double()
    b = b + a
    a[0, 3], b[1, 7], a[1, 9], b[1, 9] = (torch.nan,) * 4
    return a, b


@pytest.mark.parametrize("coefficient", SCIPY)
def test_each_group_is_what_scipy_finds_for_the_points_that_are_there(coefficient):
    a, b = tied()
    found = correlation(a, b, coefficient)
    for row, value in enumerate(found.tolist()):
        there = ~(a[row].isnan() | b[row].isnan())
        expected = SCIPY[coefficient](a[row][there].numpy(), b[row][there].numpy())[0]
        assert value == pytest.approx(float(expected), abs=1e-12)


def test_ranks_are_scipys():
    a, _ = tied()
    expected = stats.rankdata(a.numpy(), axis=-1, nan_policy="omit")
    np.testing.assert_allclose(average_ranks(a).numpy(), expected, atol=0)


@pytest.mark.parametrize("coefficient", SCIPY)
def test_constant_sides_and_fewer_than_three_points_have_none(coefficient):
    a = torch.tensor([[1.0, 1, 1, 1], [1, 2, torch.nan, torch.nan], [1, 2, 3, torch.nan]])
    b = torch.tensor([[1.0, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    found = correlation(a, b, coefficient)
    assert found[:2].isnan().all() and float(found[2]) == pytest.approx(1)
    assert correlation(torch.empty(2, 0), torch.empty(2, 0), coefficient).isnan().all()


def test_partial_is_the_correlation_of_residuals():
    a, b, c = torch.randn(3, 1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b = a + 2 * c, b - c + a

    def residual(x):
        slope, intercept = np.polyfit(c[0].numpy(), x[0].numpy(), 1)
        return x[0].numpy() - slope * c[0].numpy() - intercept

    expected = stats.pearsonr(residual(a), residual(b))[0]
    found = partial(*(correlation(x, y, "pearson") for x, y in ((a, b), (a, c), (b, c))))
    assert float(found) == pytest.approx(float(expected), abs=1e-12)


def test_what_is_the_third_itself_has_nothing_left():
    one = torch.ones(1).double()
    assert partial(one / 2, one, one / 2).isnan().all()
