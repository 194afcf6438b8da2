"""The band of output similarity: that of a mean over tokens that are not independent, on random and planted experts."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from analysis.common_tokens import common_tokens
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.slots import Shape
from analysis.statistics.output_sums import DRAWS, shuffles
from tests.analysis.beside import ask, side_of, wide_expert, with_shared

SHAPE = Shape(("1", "2", "3"), experts=10, top_k=2, model=64, hidden=32)
LENGTHS = (110,) * 16
PAIRS = np.triu_indices(SHAPE.experts, 1)
KNOBS = [{"likeness": likeness, "of": of} for likeness in ("angular", "cosine") for of in ("same token", "mean output")]
every_choice = pytest.mark.parametrize("knobs", KNOBS, ids=lambda knobs: "-".join(knobs.values()))


def asked(batches, world, **knobs):
    state = world.state_of("output_sums", batches)
    return evaluate(get("output_similarity"), (Inputs(state.shape, {"output_sums": state}),), knobs)


def band(found):
    return (np.broadcast_to(bound, found.values.shape) for bound in (found.null.low, found.null.high))


def inside(found, layer, first, second):
    low, high = (bound[layer, first, second] for bound in band(found))
    return (low <= found.values[layer, first, second]) & (found.values[layer, first, second] <= high)


@pytest.fixture(scope="module")
def random_ones(world):
    return [world.layers(seed, SHAPE, LENGTHS) for seed in range(4)]


@every_choice
def test_random_experts_are_inside_at_the_nominal_rate_and_not_always(world, random_ones, knobs):
    results = [asked(batches, world, **knobs) for batches in random_ones]
    assert min(found.facts["common tokens"] for found in results) >= 180
    rate = np.mean([inside(found, slice(None), *PAIRS) for found in results])
    assert 0.9 <= rate <= 0.995


def test_the_band_is_that_of_the_mean_and_wider_than_of_as_many_independent_tokens(world, random_ones):
    """Values of random experts are as far from 0 as the band says; tokens with an output in common are fewer ones."""
    found = asked(random_ones[0], world, likeness="cosine")
    low, high = band(found)
    width = (high - low)[:, *PAIRS].mean() / 2
    spread = np.sqrt(np.mean(found.values[:, *PAIRS] ** 2))
    assert 1.7 < width / spread < 3.1
    assert width > 1.3 * 1.96 / math.sqrt(SHAPE.model * found.facts["common tokens"])
    assert width < 0.5 * 1.96 / math.sqrt(SHAPE.model)


@pytest.mark.slow
@every_choice
def test_experts_that_share_a_third_of_their_output_are_outside(world, knobs):
    batches = []
    for batch in world.layers(7, SHAPE, LENGTHS):
        own = list(batch.experts)
        mixed = {"gate": own[0].gate, "up": own[0].up, "down": 0.5 * own[0].down + own[1].down}
        own[1] = dataclasses.replace(own[1], **mixed)
        own[2] = dataclasses.replace(own[2], gate=own[0].gate, up=own[0].up, down=own[2].down - 0.5 * own[0].down)
        batches.append(dataclasses.replace(batch, experts=own))
    found = asked(batches, world, **knobs)
    low, high = band(found)
    assert (found.values[:, 0, 1] > high[:, 0, 1]).all() and (found.values[:, 1, 0] > high[:, 1, 0]).all()
    assert (found.values[:, 0, 2] < low[:, 0, 2]).all()


@pytest.mark.slow
def test_experts_that_always_say_the_same_are_one_token(world):
    """Outputs that do not depend on the token: the mean over all of them is the cosine of one pair of directions."""
    batch = world.layers(3, SHAPE, LENGTHS)[0]
    directions = torch.randn(SHAPE.experts, SHAPE.model, generator=torch.Generator().manual_seed(1)).double()
    own = [
        dataclasses.replace(expert, down=torch.zeros_like(expert.down), down_bias=bias)
        for expert, bias in zip(batch.experts, directions, strict=True)
    ]
    found = asked([dataclasses.replace(batch, experts=own)], world, likeness="cosine")
    low, high = band(found)
    assert np.mean((high - low)[0, *PAIRS] / 2) == pytest.approx(student.ppf(0.975, DRAWS) / 8, rel=0.1)
    assert 0.9 <= inside(found, 0, *PAIRS).mean() <= 1


def test_draws_are_cosines_with_the_other_expert_shuffled_and_the_band_is_made_of_them(world):
    batch = world.layers(5, SHAPE, (40,) * 16)[1]
    state = world.state_of("output_sums", [batch])
    x = batch.expert_input[common_tokens(batch)[0]]
    one, other = (expert(x).double() for expert in batch.experts[2:4])
    unit, turned = one / one.norm(dim=-1, keepdim=True), other / other.norm(dim=-1, keepdim=True)
    turns, signs = shuffles(SHAPE.model)
    assert len(turns) == DRAWS and len(set(turns)) > 1 and (signs.abs() == 1).all()
    after = [(turned * s).roll(turn, -1) for turn, s in zip(turns, signs, strict=True)]
    cosines = torch.stack([(unit * each).sum(-1) for each in after], -1)
    drawn = state["drawn_cosine"].sum(0)[1, 2, 3]
    torch.testing.assert_close(drawn, cosines.sum(0), rtol=1e-4, atol=1e-4)  # float32 experts
    angular = state["drawn_angular"].sum(0)[1, 2, 3]
    torch.testing.assert_close(angular, (1 - cosines.acos() / math.pi).sum(0), rtol=1e-4, atol=1e-4)
    means = state["drawn_cosine"].sum(0)[1] / len(x)
    square = (means[2, 3].square().mean() + means[3, 2].square().mean()) / 2
    found = asked([batch], world, likeness="cosine")
    high = np.broadcast_to(found.null.high, found.values.shape)[1]
    assert high[2, 3] == high[3, 2] == pytest.approx(student.ppf(0.975, DRAWS) * float(square.sqrt()), rel=1e-9)
    assert (np.broadcast_to(found.null.mean, found.values.shape)[1][PAIRS] == 0).all()


@pytest.mark.slow
@every_choice
def test_a_shared_expert_has_a_band_of_its_own_in_the_last_row(world, knobs):
    rates = []
    for seed in range(20):
        batches = with_shared(world, lambda own, seed=seed: wide_expert(seed=seed), seed=seed)
        found = ask("output_similarity", side_of(world, batches, "output_similarity"), **knobs)
        low, high = band(found)
        np.testing.assert_allclose(low, low.swapaxes(1, 2), rtol=0, atol=1e-12)
        assert (low[:, -1, :-1] < high[:, -1, :-1]).all()
        assert (low[:, -1, -1] == 1).all() and (high[:, -1, -1] == 1).all()
        rates.append(inside(found, slice(None), -1, slice(0, -1)))
    assert 0.9 <= np.mean(rates) <= 0.995


def test_an_expert_without_an_output_has_no_band(world):
    batch = world.layers(2, SHAPE, (40,) * 16)[0]
    own = list(batch.experts)
    own[4] = dataclasses.replace(own[4], down=torch.zeros_like(own[4].down))
    found = asked([dataclasses.replace(batch, experts=own)], world)
    low, _ = band(found)
    assert np.isnan(low[0, 4, :4]).all() and not np.isnan(low[0, :4, :4]).any()
