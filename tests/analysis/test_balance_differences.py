"""MaxVio and entropy of one checkpoint less those of another: planted, by chance, and what cannot be exchanged."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import binom

from analysis import exchanged
from analysis.inference import evaluate
from analysis.loads import evenness
from analysis.measure import Inputs, get
from analysis.result import Reason

NAMES = ("violation_difference", "entropy_difference")
PLAIN = {"violation_difference": "load_violation", "entropy_difference": "load_entropy"}
each = pytest.mark.parametrize("name", NAMES)


def side(batch, world):
    return Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])})


def asked(name, *sides, **knobs):
    return evaluate(dataclasses.replace(get(name), interval_reason="not asked"), sides, knobs)


def uneven(world, seed, expert, hot=0.5, lengths=(20,) * 16):
    """Routes in which one expert is chosen more often, in every prompt about as much as in any other."""
    batch = world.routes(seed, lengths=lengths)
    scores = torch.rand(*batch.indices.shape[:2], 6, generator=torch.Generator().manual_seed(seed))
    scores[..., expert] += hot
    return dataclasses.replace(batch, indices=scores.topk(2).indices)


@each
def test_it_is_the_number_of_b_minus_that_of_a_and_turns_its_sign_with_them(name, world):
    a, b = side(uneven(world, 0, 0), world), side(uneven(world, 1, 3, 0.2), world)
    plain = [evaluate(get(PLAIN[name]), (s,), {}).values for s in (a, b)]
    one, other = asked(name, a, b), asked(name, b, a)
    np.testing.assert_allclose(one.values, plain[1] - plain[0], atol=1e-12)
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)


@each
def test_a_checkpoint_does_not_differ_from_itself_under_other_numbers(name, world):
    batch = uneven(world, 0, 2)
    renamed = world.permute_experts(batch, torch.tensor([3, 0, 5, 1, 2, 4]))
    result = asked(name, side(batch, world), side(renamed, world))
    np.testing.assert_allclose(result.values, 0, atol=1e-12)
    assert result.facts["sign-flip p"] == 1 and (result.null.p == 1).all()


@each
def test_a_layer_that_was_unbalanced_is_found_and_no_other(name, world):
    a = uneven(world, 0, 0, 0.0)
    hot = uneven(world, 1, 4)
    moved = a.indices.clone()
    moved[1] = hot.indices[1]
    result = asked(name, side(a, world), side(dataclasses.replace(a, indices=moved), world))
    assert result.facts["layers that differ beyond chance (max-statistic)"] == "1 of 3"
    assert result.null.p[1] == result.facts["sign-flip p"] == 1 / 1000
    assert (result.null.p[[0, 2]] == 1).all()
    assert not result.null.low[1] <= result.values[1] <= result.null.high[1]


def test_equally_hot_experts_of_other_numbers_differ_at_the_level_and_by_number_far_above(world, monkeypatch):
    """As two runs have them: mixed by number, a hot and an idle expert make chance too narrow."""
    monkeypatch.setattr(exchanged, "DRAWS", 99)
    batch, draws = world.routes(lengths=(20,) * 16), 60
    pairs = [(liking(batch, seed, 0, world), liking(batch, 1000 + seed, 1, world)) for seed in range(draws)]
    by_load = rejected(pairs)
    monkeypatch.setattr(exchanged, "_in_order_of_load", lambda counts: counts)
    assert by_load <= binom.ppf(0.999, draws, 0.05) < rejected(pairs)


def liking(batch, seed, hot, world):
    """Prompts with tastes of their own, and one expert that is liked in all of them."""
    generator = torch.Generator().manual_seed(seed)
    liked = 0.7 * torch.randn(3, 16, 6, generator=generator)[:, batch.keys.prompt]
    liked[..., hot] += 1.5
    noise = -torch.log(-torch.log(torch.rand(liked.shape, generator=generator)))
    return side(dataclasses.replace(batch, indices=(liked + noise).topk(2).indices), world)


def rejected(pairs):
    found = [
        exchanged.exchanged(*pair, "selected", evenness, torch.Generator().manual_seed(seed))
        for seed, pair in enumerate(pairs)
    ]
    return sum(chance.facts["sign-flip p"] <= 0.05 for chance in found)


@each
def test_sides_of_other_numbers_of_experts_are_compared_and_say_in_the_place_of_chance_why_there_is_none(name, world):
    more = side(world.routes(shape=dataclasses.replace(world.SHAPE, experts=7)), world)
    result = asked(name, side(world.routes(), world), more)
    assert np.isfinite(result.values).all()
    assert isinstance(result.null, Reason) and "a has 6 experts a layer, b has 7" in result.null.reason
    assert any("a has 6 experts a layer and b 7" in caveat for caveat in result.caveats)
