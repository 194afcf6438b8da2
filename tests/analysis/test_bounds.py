"""Bounds on the scale on which an error is even: worked numbers, and what must hold at the ends."""

import math

import numpy as np
import pytest
import torch

from analysis.bounds import fisher_root, jackknife, score_bounds, spread, squared
from analysis.errors import BadDeclaration
from analysis.inference import evaluate
from analysis.measure import get, measure


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_a_share_of_independent_tokens_has_wilsons_interval():
    # 3 of 10 at 1.96: Wilson's bounds, worked by hand from (p + z^2/2n +- z sqrt(p q/n + z^2/4n^2)) / (1 + z^2/n).
    share, error = numbers(0.3), numbers(math.sqrt(0.3 * 0.7 / 10))
    low, high = score_bounds(share, error, numbers(math.nan), 1.96)
    assert low.item() == pytest.approx(0.107789, abs=1e-6)
    assert high.item() == pytest.approx(0.603227, abs=1e-6)


def test_the_bounds_are_the_shares_that_are_just_so_many_errors_away():
    share, error, reach = numbers(0.02, 0.4, 0.9), numbers(0.015, 0.05, 0.03), 2.365
    for bound in score_bounds(share, error, numbers(*[math.nan] * 3), reach):
        its_error = (bound * (1 - bound) / (share * (1 - share))).sqrt() * error
        torch.testing.assert_close((bound - share).abs(), reach * its_error, rtol=1e-9, atol=0)


def test_a_pair_that_was_never_seen_may_still_be_one_in_so_many_tokens():
    low, high = score_bounds(numbers(0, 1, 1), numbers(0, 0, 0), numbers(100, 100, math.inf), 2.0)
    np.testing.assert_allclose(low, [0, 100 / 104, 1], rtol=1e-12)
    np.testing.assert_allclose(high, [4 / 104, 1, 1], rtol=1e-12)


def test_a_share_of_nothing_known_has_no_bounds():
    without_trials = score_bounds(numbers(0), numbers(0), numbers(math.nan), 2.0)
    without_error = score_bounds(numbers(0, 0.5), numbers(math.nan, math.nan), numbers(9, 9), 2.0)
    assert all(bool(bound.isnan().all()) for bound in (*without_trials, *without_error))


def test_fishers_root_goes_there_and_back_and_refuses_what_is_no_square_of_a_correlation():
    there = numbers(-0.3, -0.0, 0.0, 0.25, 1.0, 1 + 1e-15)
    torch.testing.assert_close(squared(fisher_root(there)), there, rtol=1e-12, atol=0)
    assert fisher_root(numbers(0.25)).item() == pytest.approx(math.atanh(0.5))
    assert fisher_root(numbers(1.1)).isnan()


def test_a_squared_correlation_has_the_interval_of_its_correlation():
    """The jackknife of the squares, on their scale, is the square of the jackknife of z."""
    z = numbers(0.5, 0.6, 0.4, 0.55, 0.7)
    centre, low, high = jackknife(
        lambda block: z[0].tanh() ** 2 if block is None else z[block].tanh() ** 2,
        (1, 2, 3, 4),
        scale="squared correlation",
    )
    half = 3.182446305 * spread(z[1:])
    assert centre.item() == pytest.approx(math.tanh(0.5) ** 2)
    # -1.0 or so: the correlation may have either sign, and its square then takes it along.
    assert low.item() == pytest.approx(-(math.tanh(0.5 - half.item()) ** 2))
    assert high.item() == pytest.approx(math.tanh(0.5 + half.item()) ** 2)


@pytest.mark.parametrize("name", ["coactivation", "centred_kernel_alignment"])
def test_bounds_stay_where_the_value_can_be_and_the_diagonal_is_exact(name, world):
    result = evaluate(get(name), world.inputs_for(get(name), lengths=(12,) * 40), {})
    low, high = result.interval.low, result.interval.high
    own = np.eye(low.shape[-1], dtype=bool)
    assert (high <= 1).all()
    np.testing.assert_allclose(low[:, own], 1, rtol=1e-12)
    assert (low[:, ~own] < result.values[:, ~own]).all()
    assert (high[:, ~own] > result.values[:, ~own]).all()
    assert name != "coactivation" or (low >= 0).all()


def test_a_corrected_share_is_refused():
    about = dict(title="t", question="q", unit="u", family="routing", source="s", axes=("layer",))

    def number(prompt_counts):
        return prompt_counts

    with pytest.raises(BadDeclaration, match="plug-in as it is only"):
        measure(**about, scale="share", plug_in=True)(number)
