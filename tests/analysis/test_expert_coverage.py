"""How much text is needed: against sums of scipy's distribution functions, and against drawing prompts."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import binom, hypergeom

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.measure import get
from analysis.result import Reason

MEASURE = get("expert_coverage")


def asked(world, indices, lengths, experts=6, served=None, **knobs):
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=experts, top_k=indices.shape[-1])
    batch = dataclasses.replace(world.routes(shape=shape, lengths=lengths), indices=indices[None])
    batch = batch if served is None else dataclasses.replace(batch, served=served[None])
    side = world.Inputs(shape, {"prompt_counts": world.state_of("prompt_counts", [batch])})
    return evaluate(MEASURE, (side,), knobs)


def skewed(lengths, experts=6, seed=0):
    """One expert a token, later experts rarer, each prompt with a favourite."""
    generator = torch.Generator().manual_seed(seed)
    favourite = torch.repeat_interleave(torch.randint(0, experts, (len(lengths),), generator=generator), lengths[0])
    weight = torch.tensor([1 / (1 + e) ** 2 for e in range(experts)])
    chosen = torch.multinomial(weight.expand(len(favourite), -1), 1, generator=generator)[:, 0]
    coin = torch.rand(len(favourite), generator=generator) < 0.4
    return torch.where(coin, favourite, chosen)[:, None]


def test_equal_experts_need_what_the_coupon_collector_says(world):
    """Four experts in turn: 4 (3/4)^N = 0.5."""
    result = asked(world, torch.arange(80)[:, None] % 4, (10,) * 8, experts=4)
    assert result.values[0] == pytest.approx(np.log(8) / np.log(4 / 3), rel=1e-9)
    assert result.facts["tokens asked about"] == 80


@pytest.mark.parametrize("enough", [1, 5])
def test_tokens_are_where_the_sum_of_binomials_falls_to_the_missing(world, enough):
    indices = skewed((25,) * 16)
    share = np.bincount(indices[:, 0], minlength=6) / len(indices)
    needed = asked(world, indices, (25,) * 16, enough=enough, missing=0.25).values[0]
    # Whole numbers of tokens on both sides of the answer lie on both sides of the bar.
    below, above = (binom.cdf(enough - 1, n, share).sum() for n in (np.ceil(needed), np.floor(needed)))
    assert below <= 0.25 <= above
    if enough == 1:
        exact = brentq(lambda n: ((1 - share) ** n).sum() - 0.25, 1, 1e4)
        assert needed == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("enough", [1, 2])
def test_prompts_are_where_the_hypergeometric_falls_to_the_missing(world, enough):
    indices = skewed((6,) * 40)
    touched = (torch.nn.functional.one_hot(indices[:, 0], 6).view(40, 6, 6).sum(1) > 0).sum(0).numpy()
    needed = asked(world, indices, (6,) * 40, by="prompts", enough=enough).values[0]
    curve = np.array([hypergeom.cdf(enough - 1, 40, touched, m).sum() for m in range(41)])
    after = int(np.argmax(curve <= 0.5))
    between = after - 1 + (curve[after - 1] - 0.5) / (curve[after - 1] - curve[after])
    assert needed == pytest.approx(between, rel=1e-9)
    assert 1 < needed < 40


def test_rarefaction_is_the_mean_over_prompts_really_drawn(world):
    indices = skewed((6,) * 40, seed=3)
    touched = torch.nn.functional.one_hot(indices[:, 0], 6).view(40, 6, 6).sum(1) > 0
    order = torch.rand(4000, 40, generator=torch.Generator().manual_seed(0)).argsort(-1)
    unseen = (~(touched[order].cumsum(1) > 0)).sum(-1).double().mean(0)
    needed = asked(world, indices, (6,) * 40, by="prompts").values[0]
    drawn = float(np.interp(-0.5, -unseen.numpy(), np.arange(1, 41)))
    assert needed == pytest.approx(drawn, rel=0.02)


def test_an_expert_never_seen_has_no_number_and_says_so(world):
    for by in ("tokens", "prompts"):
        result = asked(world, torch.arange(80)[:, None] % 3, (10,) * 8, experts=4, by=by)
        assert np.isnan(result.values).all()
        assert any(caveat.startswith("NaN: ") for caveat in result.caveats)
        assert result.facts["experts never seen"] == 1


def test_singletons_estimate_what_is_still_unseen(world):
    indices = torch.tensor([0] * 8 + [1, 2])[:, None].repeat(2, 1)[:10]
    result = asked(world, indices, (5, 5), experts=4)
    assert result.facts["share of selections by experts unseen so far (Good-Turing)"] == pytest.approx(0.2)


def test_nothing_is_needed_where_all_may_be_missing(world):
    indices = torch.arange(80)[:, None] % 4
    assert asked(world, indices, (10,) * 8, experts=4, missing=4.0, by="prompts").values[0] == 0


def test_bursts_need_more_prompts_than_blind_routing(world):
    """Each prompt stays with one expert."""
    indices = torch.repeat_interleave(torch.arange(40) % 6, 6)[:, None]
    result = asked(world, indices, (6,) * 40, by="prompts")
    assert result.values[0] > float(result.null.high)


@pytest.mark.slow
@pytest.mark.parametrize("enough", [1, 3])
def test_the_floor_in_prompts_is_that_of_blind_prompts_really_routed(enough, world):
    null = asked(world, skewed((6,) * 40), (6,) * 40, by="prompts", enough=enough).null
    drawn = []
    for seed in range(60):
        blind = torch.randint(0, 6, (240, 1), generator=torch.Generator().manual_seed(seed))
        drawn.append(asked(world, blind, (6,) * 40, by="prompts", enough=enough).values[0])
    assert float(null.mean) == pytest.approx(np.mean(drawn), rel=0.02)
    inside = np.mean([float(null.low) <= value <= float(null.high) for value in drawn])
    assert inside >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("by", ["tokens", "prompts"])
def test_blind_routing_that_drops_a_part_needs_what_the_null_says(by, world):
    """Half of the selections dropped by coin: without the drops the null would need half as many tokens."""
    values, means, inside = [], [], []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        indices = torch.randint(0, 6, (480, 1), generator=generator)
        served = torch.rand(480, 1, generator=generator) < 0.5
        result = asked(world, indices, (6,) * 80, served=served, by=by, count="served")
        values.append(result.values[0])
        means.append(float(result.null.mean))
        inside.append(float(result.null.low) <= values[-1] <= float(result.null.high))
    assert np.mean(means) == pytest.approx(np.mean(values), rel=0.02)
    assert sum(inside) >= 16
    assert "each kept with the chance that it was served" in result.null.how


def test_without_drops_what_was_served_needs_what_was_selected(world):
    indices = skewed((6,) * 40)
    served = torch.ones_like(indices) > 0
    for by in ("tokens", "prompts"):
        one, other = (
            asked(world, indices, (6,) * 40, served=served, by=by, count=count).null for count in ("selected", "served")
        )
        np.testing.assert_array_equal([one.mean, one.low, one.high], [other.mean, other.low, other.high])
        assert one.how == other.how


def test_the_null_of_what_was_served_is_of_each_layer(world):
    batch = world.routes(lengths=(40,) * 16)
    half = torch.rand(batch.served[1].shape, generator=torch.Generator().manual_seed(0)) < 0.5
    served = torch.stack([torch.ones_like(half), half, torch.ones_like(half)])
    state = world.state_of("prompt_counts", [dataclasses.replace(batch, served=served)])
    result = evaluate(MEASURE, (world.Inputs(batch.shape, {"prompt_counts": state}),), {"count": "served"})
    first, second, third = result.null.mean
    assert first == third < second / 1.8
    assert (result.null.low <= result.values).all() and (result.values <= result.null.high).all()


def test_nothing_served_has_no_null(world):
    indices = torch.arange(80)[:, None] % 4
    result = asked(world, indices, (10,) * 8, experts=4, served=torch.zeros_like(indices) > 0, count="served")
    assert np.isnan(result.values).all() and isinstance(result.null, Reason)


def test_knobs_out_of_range_are_refused(world):
    for knobs in ({"enough": 0}, {"missing": 0.0}):
        with pytest.raises(BadKnob, match=f"{next(iter(knobs))!r} is "):
            asked(world, torch.arange(80)[:, None] % 4, (10,) * 8, **knobs)
