"""How early a router settles: by hand, planted, against blind choices, and what cannot be compared."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import binom

from analysis.errors import NotComparable, TooFew
from analysis.inference import evaluate
from analysis.measure import Inputs, get

MEASURE = get("router_saturation")


def steps_of(batches, world, labels=None):
    labels = labels or [str(100 * n) for n in range(len(batches))]
    return tuple(
        Inputs(b.shape, {"token_routes": world.state_of("token_routes", [b])}, label=label)
        for b, label in zip(batches, labels, strict=True)
    )


def test_shared_experts_of_three_tokens_by_hand(world):
    shape = dataclasses.replace(world.SHAPE, layers=("4",))
    batch = world.take(world.routes(shape=shape, lengths=(3, 1)), range(3))
    weights = torch.tensor([0.7, 0.3]).expand(1, 3, 2)
    first, last = (
        dataclasses.replace(batch, indices=torch.tensor([rows]), weights=weights)
        for rows in ([[0, 1], [2, 3], [4, 5]], [[1, 0], [2, 5], [0, 1]])
    )
    steps = steps_of([first, last], world)
    result = evaluate(MEASURE, steps, {})
    # Two, one and none of two experts shared; only token 2 keeps its first.
    np.testing.assert_allclose(result.values[:, 0], [(1 + 1 / 2 + 0) / 3, 1])
    np.testing.assert_allclose(evaluate(MEASURE, steps, {"top1": True}).values[:, 0], [1 / 3, 1])
    assert [axis.labels for axis in result.axes] == [("0", "100"), ("4",)]
    assert result.facts["final step"] == "100"
    assert result.facts["first step: mean over layers"] == pytest.approx(0.5)


def test_the_first_choice_is_the_heaviest_whatever_its_slot(world):
    batch = world.routes()
    batch = dataclasses.replace(batch, weights=torch.tensor([0.7, 0.3]).expand_as(batch.weights))
    turned = dataclasses.replace(batch, indices=batch.indices.flip(-1), weights=batch.weights.flip(-1))
    for top1 in (False, True):
        np.testing.assert_array_equal(evaluate(MEASURE, steps_of([turned, batch], world), {"top1": top1}).values, 1)


def test_a_layer_that_settles_step_by_step_rises_to_one(world):
    first, last = world.routes(1, lengths=(100,) * 16), world.routes(2, lengths=(100,) * 16)
    coin = torch.rand(len(last.keys), generator=torch.Generator().manual_seed(0))
    batches = []
    for share in (0.0, 0.5, 1.0):
        settled = (coin < share)[None, :, None]
        batches.append(dataclasses.replace(last, indices=torch.where(settled, last.indices, first.indices)))
    result = evaluate(MEASURE, steps_of(batches, world), {})
    chance = 2 / 6
    np.testing.assert_allclose(result.values.mean(1), [chance, 0.5 + 0.5 * chance, 1], atol=0.02)
    assert result.null.low[0, 0] < chance < result.null.high[0, 0]
    assert (result.values[1] > result.null.high[1]).all()


def test_a_layer_that_settled_is_beyond_other_prompts_and_one_that_did_not_is_not(world):
    first, last = world.routes(1), world.routes(2)
    moved = first.indices.clone()
    moved[1] = torch.where(torch.arange(len(last.keys))[:, None] % 2 == 0, last.indices[1], first.indices[1])
    batches = [dataclasses.replace(last, indices=indices) for indices in (moved, last.indices)]
    result = evaluate(MEASURE, steps_of(batches, world), {})
    assert result.facts["cells more settled than chance (max-statistic)"] == "1 of 3"
    assert result.null.p[0, 1] == result.facts["permutation p"] == 1 / 200
    assert (result.null.p[0, [0, 2]] > 0.05).all()
    assert np.isnan(result.null.p[1]).all()  # the last step shares all with itself


def test_steps_whose_prompts_have_tastes_of_their_own_are_settled_at_the_level(world, monkeypatch):
    """Tokens of one prompt are alike, so prompts are exchanged whole: single tokens would find most of them settled."""
    for name in ("DRAWS", "FEWEST"):
        monkeypatch.setattr(f"analysis.measures.router_saturation.{name}", 39)
    found, draws = 0, 20
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        batch = world.routes(lengths=(20,) * 16)
        tastes = torch.randn(2, 3, 16, 6, generator=generator)[:, :, batch.keys.prompt]
        chosen = (tastes + torch.randn(tastes.shape, generator=generator)).topk(2).indices
        steps = steps_of([dataclasses.replace(batch, indices=indices) for indices in chosen], world)
        found += evaluate(dataclasses.replace(MEASURE, interval_reason="no"), steps, {}).facts["permutation p"] <= 0.05
    assert found <= binom.ppf(0.999, draws, 0.05)


def test_chance_is_k_of_e_and_an_eighth_for_olmoe(world):
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=64, top_k=8)
    keys = world.routes(0, shape, (500,) * 8).keys
    batches = [dataclasses.replace(world.routes(seed, shape, (500,) * 8), keys=keys) for seed in (0, 1)]
    result = evaluate(MEASURE, steps_of(batches, world), {})
    assert result.null.mean[0, 0] == 8 / 64
    assert result.values[0, 0] == pytest.approx(8 / 64, abs=0.006)
    assert evaluate(MEASURE, steps_of(batches, world), {"top1": True}).null.mean[0, 0] == 1 / 64


def test_the_band_is_that_of_repeated_blind_choices(world):
    keys = world.routes(0, lengths=(20,) * 16).keys
    batches = [dataclasses.replace(world.routes(seed, lengths=(20,) * 16), keys=keys) for seed in range(41)]
    result = evaluate(dataclasses.replace(MEASURE, interval_reason="not asked"), steps_of(batches, world), {})
    inside = (result.values[:-1] >= result.null.low[0]) & (result.values[:-1] <= result.null.high[0])
    assert 0.88 < inside.mean() < 1
    assert result.values[:-1].std() * 1.96 == pytest.approx(float(result.null.high[0, 0] - 2 / 6), rel=0.2)


def test_order_of_the_prompts_does_not_matter(world):
    steps = world.inputs_for(MEASURE)
    state = steps[0].states["token_routes"]
    turned = dataclasses.replace(steps[0], states={"token_routes": state.take(list(range(15, -1, -1)))})
    one, other = (evaluate(MEASURE, s, {}).values for s in (steps, (turned, *steps[1:])))
    np.testing.assert_array_equal(one, other)


def test_one_step_has_nothing_to_be_compared_with(world):
    with pytest.raises(TooFew, match="1 step"):
        evaluate(MEASURE, world.inputs_for(MEASURE)[:1], {})


def test_other_tokens_or_another_shape_are_refused(world):
    batch = world.routes()
    other = dataclasses.replace(batch, keys=dataclasses.replace(batch.keys, token=batch.keys.token + 1))
    with pytest.raises(NotComparable, match="step 0 cut the prompts into other tokens"):
        evaluate(MEASURE, steps_of([other, batch], world), {})
    wider = dataclasses.replace(batch, shape=dataclasses.replace(batch.shape, experts=8))
    with pytest.raises(NotComparable, match="another shape"):
        evaluate(MEASURE, steps_of([wider, batch], world), {})
