"""Spectrum, orthogonality and drift of router rows: closed forms, numpy, and the gauge a softmax router cannot feel."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob, NotComparable
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.nulls import random_rows

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(3, 9, 12, generator=GENERATOR, dtype=torch.float64) + 0.4
SHARED = 5 * torch.randn(12, generator=GENERATOR, dtype=torch.float64)


def side(world, weight):
    layers = tuple(map(str, range(len(weight))))
    shape = dataclasses.replace(world.SHAPE, layers=layers, experts=weight.shape[1], model=weight.shape[2])
    return Inputs(shape, {}, {"router_weight": weight})


def asked(world, name, *weights, **knobs):
    return evaluate(get(name), tuple(side(world, weight) for weight in weights), knobs)


def test_the_spectrum_is_that_of_numpy_and_its_squares_sum_to_the_energy(world):
    raw = asked(world, "router_spectrum", ROWS, form="raw").values
    for layer, values in zip(ROWS, raw, strict=True):
        np.testing.assert_allclose(values, np.linalg.svd(layer.numpy(), compute_uv=False), rtol=1e-12)
    np.testing.assert_allclose((raw**2).sum(-1), ROWS.square().sum((-1, -2)), rtol=1e-12)
    centred = asked(world, "router_spectrum", ROWS).values
    assert centred.shape == (3, 8)
    covariance = np.stack([np.linalg.eigvalsh(np.cov(layer.numpy().T) * 8)[::-1][:8] for layer in ROWS])
    np.testing.assert_allclose(centred**2, covariance, rtol=1e-9)


def test_orthogonal_rows_use_all_directions_and_parallel_rows_one(world):
    weight = torch.stack([2 * torch.eye(4), torch.ones(4, 4)]).double()
    result = asked(world, "router_spectrum", weight, form="raw")
    np.testing.assert_allclose(result.values, [[2, 2, 2, 2], [4, 0, 0, 0]], atol=1e-12)
    only = asked(world, "router_spectrum", weight[:1], form="raw")
    assert only.facts["participation ratio, mean over layers"] == pytest.approx(4)
    assert only.facts["condition number, geometric mean over layers"] == pytest.approx(1)
    assert result.facts["participation ratio, least"] == pytest.approx(1)
    assert [a.labels for a in result.axes] == [("0", "1"), ("1", "2", "3", "4")]


@pytest.mark.parametrize("name", ["router_spectrum", "router_drift"])
def test_a_row_shared_by_all_experts_moves_the_raw_form_only(name, world):
    moved = ROWS + SHARED
    others = (ROWS,) if get(name).sides else ()
    if get(name).sides:
        assert (asked(world, name, ROWS, moved, form="raw").values > 0.3).all()
        np.testing.assert_allclose(asked(world, name, ROWS, moved).values, np.zeros(3), atol=1e-12)
        return
    raw, centred = (
        [asked(world, name, *others, weight, form=form).values for weight in (ROWS, moved)]
        for form in ("raw", "centred")
    )
    assert (raw[1][:, 0] > 2 * raw[0][:, 0]).all()
    np.testing.assert_allclose(centred[0], centred[1], rtol=1e-9)


def test_random_rows_have_the_inner_products_of_long_ones():
    """Few rows of many dimensions, and more rows than dimensions: Wishart in both."""
    for rows, dimensions in ((3, 40), (5, 2)):
        short = random_rows(20_000, rows, dimensions, torch.Generator().manual_seed(0))
        assert short.shape == (20_000, rows, min(rows, dimensions))
        gram, same = short @ short.mT, torch.eye(rows, dtype=torch.float64)
        torch.testing.assert_close(gram.mean(0), dimensions * same, rtol=0, atol=0.08 * dimensions)
        torch.testing.assert_close(gram.var(0), dimensions * (1 + same), rtol=0, atol=0.08 * 2 * dimensions)
        # One inner product fixes the next where dimensions are few: the third moment of a cycle of three rows.
        cycle = (gram[:, 0, 1] * gram[:, 1, 2] * gram[:, 2, 0]).mean()
        assert float(cycle) == pytest.approx(dimensions, rel=0.25)


def test_the_band_of_the_spectrum_is_that_of_whole_random_rows(world):
    null = asked(world, "router_spectrum", ROWS, form="raw").null
    lengths = ROWS[0].norm(dim=-1, keepdim=True)
    plain = torch.randn(2000, 9, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    drawn = torch.linalg.svdvals(plain / plain.norm(dim=-1, keepdim=True) * lengths)
    np.testing.assert_allclose(null.mean[0], drawn.mean(0), rtol=0.03)
    np.testing.assert_allclose(null.high[0], drawn.quantile(0.975, 0), rtol=0.06)


def test_orthogonality_is_the_mean_square_of_the_cosines_of_different_rows(world):
    values = asked(world, "router_orthogonality", ROWS).values
    for layer, value in zip(ROWS, values, strict=True):
        squares = [
            float(layer[i] @ layer[j] / (layer[i].norm() * layer[j].norm())) ** 2
            for i in range(9)
            for j in range(9)
            if i != j
        ]
        assert value == pytest.approx(sum(squares) / 81, abs=1e-12)


def test_orthogonality_has_its_extremes_and_blocks(world):
    weight = torch.stack([torch.eye(4), torch.ones(4, 4)]).double()
    np.testing.assert_allclose(asked(world, "router_orthogonality", weight).values, [0, 3 / 4], atol=1e-12)
    pairs = torch.tensor([[1.0, 0], [0, 1], [1, 0], [1, 0]]).double()[None]
    assert asked(world, "router_orthogonality", pairs, groups=2).values[0] == pytest.approx((0 + 2 / 4) / 2)
    for groups, right in (
        (0, "'groups' is 0; it takes a whole number, 1 to"),
        (3, "right: a divisor of the 4 experts"),
    ):
        with pytest.raises(BadKnob, match=right):
            asked(world, "router_orthogonality", weight, groups=groups)


def test_unrelated_rows_are_not_at_right_angles_but_at_chance(world):
    null = asked(world, "router_orthogonality", ROWS).null
    assert float(null.mean) == pytest.approx(8 / (9 * 12), rel=0.02)


@pytest.mark.parametrize("name", ["router_orthogonality", "router_drift"])
def test_a_row_of_length_zero_is_nan_or_left_out_and_said(name, world):
    weight = ROWS.clone()
    weight[0, 3] = 0
    if name == "router_orthogonality":
        result = asked(world, name, weight)
        assert np.isnan(result.values).tolist() == [True, False, False]
        assert any(caveat.startswith("NaN: ") for caveat in result.caveats)
        return
    assert asked(world, name, weight, ROWS, form="raw").facts["rows"] == 26
    gone = asked(world, name, torch.zeros_like(ROWS), ROWS)
    assert np.isnan(gone.values).all()
    assert any(caveat.startswith("NaN: ") for caveat in gone.caveats)


def test_a_router_does_not_drift_from_itself_and_length_is_no_direction(world):
    for knobs in ({}, {"what": "relative"}, {"form": "raw"}):
        assert (asked(world, "router_drift", ROWS, ROWS, **knobs).values == 0).all()
    np.testing.assert_allclose(asked(world, "router_drift", ROWS, 1.5 * ROWS).values, np.zeros(3), atol=1e-12)
    relative = asked(world, "router_drift", ROWS, 1.5 * ROWS, what="relative").values
    np.testing.assert_allclose(relative, np.full(3, 0.5), atol=1e-12)


def test_drift_is_one_minus_the_cosine_of_each_row_with_itself(world):
    other = ROWS + torch.randn(3, 9, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    a, b = (rows - rows.mean(1, keepdim=True) for rows in (ROWS, other))
    expected = 1 - torch.nn.functional.cosine_similarity(a, b, dim=-1).mean(-1)
    np.testing.assert_allclose(asked(world, "router_drift", ROWS, other).values, expected, atol=1e-12)
    opposite = asked(world, "router_drift", ROWS, -ROWS)
    np.testing.assert_allclose(opposite.values, np.full(3, 2.0), atol=1e-12)


def test_a_turn_of_a_hundred_millionth_is_not_lost(world):
    """1 - cos of an angle of 1e-8 is 5e-17: less than the last digit of 1."""
    a = torch.eye(4).double()[None]
    b = a.clone()
    b[0, 0, 1] = 1e-8
    assert asked(world, "router_drift", a, b, form="raw").values[0] == pytest.approx(0.5e-16 / 4, rel=1e-6)


@pytest.mark.parametrize("what", ["direction", "relative"])
def test_rows_that_turned_a_little_are_nearer_than_random_pairs_and_those_of_other_numbers_are_not(what, world):
    noise = torch.randn(3, 9, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    moved = ROWS + 0.5 * noise
    other = moved.clone()
    other[1] = moved[1, torch.arange(9).roll(1)]
    same, mixed = (asked(world, "router_drift", ROWS, b, what=what) for b in (moved, other))
    assert (same.null.p == 1 / 1000).all() and same.facts["permutation p"] == 1 / 1000
    assert mixed.facts["layers nearer than random pairs (max-statistic)"] == "2 of 3"
    assert mixed.null.p[1] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("what", ["direction", "relative"])
def test_unrelated_routers_are_at_the_null(what, world):
    inside = 0
    for seed in range(40):
        pair = torch.randn(2, 1, 9, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        result = asked(world, "router_drift", *pair, what=what)
        inside += int(result.null.low[0] <= result.values[0] <= result.null.high[0])
    assert 34 <= inside <= 40


def test_routers_of_other_sizes_are_refused_with_both(world):
    with pytest.raises(
        NotComparable, match="a has 3 MoE layers of 9 experts in 12 dimensions, b has 3 MoE layers of 8"
    ):
        asked(world, "router_drift", ROWS, ROWS[:, :8])
