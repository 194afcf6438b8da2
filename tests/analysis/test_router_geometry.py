"""Router rows: identities in float64, and the gauge that a softmax router cannot feel."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.cosines import centred_rows, common_mode, row_cosines, unit_rows
from analysis.inference import evaluate
from analysis.measure import Inputs, get

ROWS = torch.randn(4, 9, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.4


def asked(name, weight, world, **knobs):
    shape = dataclasses.replace(world.SHAPE, layers=tuple(map(str, range(len(weight)))), experts=weight.shape[1])
    return evaluate(get(name), (Inputs(shape, {}, {"router_weight": weight}),), knobs)


def mean_cosine(rows):
    """(|sum of unit rows|^2 - E) / (E (E - 1)), without forming the pairs."""
    count = rows.shape[-2]
    return (unit_rows(rows).sum(-2).square().sum(-1) - count) / (count * (count - 1))


def test_the_measures_agree_with_the_closed_form(world):
    by_layer = asked("router_mean_cosine", ROWS, world).values
    np.testing.assert_allclose(by_layer, mean_cosine(ROWS).numpy(), atol=1e-12)
    assert asked("router_cosine", ROWS, world).facts["mean over pairs"] == pytest.approx(by_layer.mean(), abs=1e-12)


def test_one_vector_added_to_all_rows_changes_raw_cosines_only(world):
    x = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    moved = ROWS + torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    before, after = ((x @ rows.mT).softmax(-1) for rows in (ROWS, moved))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)
    assert (row_cosines(ROWS, "raw") - row_cosines(moved, "raw")).abs().max() > 0.1
    torch.testing.assert_close(row_cosines(ROWS, "centred"), row_cosines(moved, "centred"), rtol=0, atol=1e-12)
    assert (common_mode(moved) - common_mode(ROWS)).abs().max() > 0.01


def test_centred_rows_of_equal_length_have_a_mean_cosine_that_says_nothing():
    basis = torch.eye(6, dtype=torch.float64)[None]
    assert float(mean_cosine(centred_rows(basis))) == pytest.approx(-1 / 5, abs=1e-12)


def test_orthogonal_rows_are_unlike_and_equal_rows_are_alike(world):
    weight = torch.stack([torch.eye(4), torch.ones(4, 4)]).double()
    cosines = asked("router_cosine", weight, world).values
    np.testing.assert_allclose(cosines[0], np.eye(4), atol=1e-12)
    np.testing.assert_allclose(cosines[1], np.ones((4, 4)), atol=1e-12)
    shares = asked("router_common_mode", weight, world).values
    np.testing.assert_allclose(shares, [1 / 4, 1], atol=1e-12)


def test_equal_rows_have_no_centred_direction_and_say_so(world):
    weight = (torch.ones(1, 4, 4) * 0.1).double()
    result = asked("router_cosine", weight, world, form="centred")
    assert np.isnan(result.values).all()
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


def test_a_row_of_length_zero_is_nan_and_its_pairs_are_not_counted(world):
    weight = ROWS.clone()
    weight[0, 3] = 0
    result = asked("router_cosine", weight, world)
    assert np.isnan(result.values[0, 3]).all() and np.isnan(result.values[0, :, 3]).all()
    assert not np.isnan(result.values[1:]).any()
    assert result.facts["pairs"] == 4 * 36 - 8
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


def test_unrelated_directions_scatter_by_one_over_root_d(world):
    null = asked("router_cosine", torch.randn(1, 8, 64, generator=torch.Generator().manual_seed(0)), world).null
    high = null.high[0, 1] if null.high.ndim == 2 else null.high[0, 0, 1]
    assert high == pytest.approx(1.96 / math.sqrt(64), rel=0.05)


def test_the_length_of_a_row_does_not_matter(world):
    scale = torch.rand(4, 9, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.5
    one, other = (asked("router_cosine", rows, world).values for rows in (ROWS, ROWS * scale))
    np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize(
    ("summary", "of"), [("mean", np.mean), ("rms", lambda c: np.sqrt(np.mean(c**2))), ("largest", max)]
)
def test_a_row_of_length_zero_is_left_out_and_the_pairs_that_are_used_are_said(summary, of, world):
    rows = ROWS.clone()
    rows[0, 4] = 0
    found, whole = (asked("router_mean_cosine", each, world, summary=summary) for each in (rows, ROWS))
    others = np.delete(asked("router_cosine", ROWS, world).values[0], 4, 0)
    others = np.delete(others, 4, 1)[np.triu_indices(8, 1)]
    assert found.values[0] == pytest.approx(of(others), abs=1e-12) and found.values[1] == whole.values[1]
    assert found.facts["fewest pairs of a layer"] == 28 and whole.facts["fewest pairs of a layer"] == 36
    assert any("8 of 36 pairs" in caveat for caveat in found.caveats)
    nobody = asked("router_mean_cosine", torch.zeros_like(ROWS), world, summary=summary)
    assert np.isnan(nobody.values).all() and nobody.facts["fewest pairs of a layer"] == 0


@pytest.mark.parametrize("summary", ["mean", "rms", "largest"])
def test_summaries_by_depth_are_those_of_the_mosaic(summary, world):
    mosaic = asked("router_cosine", ROWS, world, form="centred").values
    pairs = np.stack([layer[np.triu_indices(9, 1)] for layer in mosaic])
    expected = {"mean": pairs.mean(-1), "rms": np.sqrt((pairs**2).mean(-1)), "largest": pairs.max(-1)}[summary]
    found = asked("router_mean_cosine", ROWS, world, form="centred", summary=summary).values
    np.testing.assert_allclose(found, expected, atol=1e-12)
