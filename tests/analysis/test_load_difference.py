"""Two checkpoints on the same prompts: what differs, what chance is, and what cannot be compared."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import binom

from analysis.errors import NotComparable
from analysis.inference import evaluate
from analysis.measure import get

MEASURE = get("load_difference")


def side(batch, world):
    return world.Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])})


def test_a_checkpoint_does_not_differ_from_itself(world):
    one = side(world.routes(), world)
    result = evaluate(MEASURE, (one, one), {})
    assert (result.values == 0).all()
    assert result.facts["sign-flip p"] == 1
    assert (result.null.high == 0).all() and (result.null.p == 1).all()


def test_swapping_the_sides_turns_the_sign(world):
    a, b = world.inputs_for(MEASURE)
    one, other = evaluate(MEASURE, (a, b), {}), evaluate(MEASURE, (b, a), {})
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)


def test_it_is_the_load_of_b_minus_the_load_of_a(world):
    a, b = world.inputs_for(MEASURE)
    loads = [evaluate(get("expert_load"), (s,), {}).values for s in (a, b)]
    np.testing.assert_allclose(evaluate(MEASURE, (a, b), {}).values, loads[1] - loads[0], atol=1e-12)


def test_a_planted_shift_lies_outside_the_band(world):
    a = world.routes(seed=1)
    moved = a.indices.clone()
    moved[0] = torch.where(moved[0] == 0, 6, moved[0])
    result = evaluate(MEASURE, (side(a, world), side(dataclasses.replace(a, indices=moved), world)), {})
    assert result.values[0, 0] < result.null.low[0, 0]
    assert (result.values[1:] == 0).all()
    assert result.facts["sign-flip p"] == 1 / 1000
    assert result.facts["layers that differ beyond chance (max-statistic)"] == "1 of 3"
    assert result.null.p[0, 0] == 1 / 1000
    assert (result.null.p[1:] == 1).all()


def test_unequal_experts_or_layers_are_refused_with_both_values(world):
    a = side(world.routes(), world)
    more = side(world.routes(shape=dataclasses.replace(world.SHAPE, experts=7)), world)
    with pytest.raises(NotComparable, match="a has 6 experts a layer, b has 7"):
        evaluate(MEASURE, (a, more), {})
    fewer = side(world.routes(shape=dataclasses.replace(world.SHAPE, layers=("1", "2"))), world)
    with pytest.raises(NotComparable, match=r"a has 3 MoE layers \(1, 2, 3\), b has 2 \(1, 2\)"):
        evaluate(MEASURE, (a, fewer), {})


def test_a_soft_side_is_compared_by_weight_on_both_sides_and_says_so(world):
    soft = dataclasses.replace(world.SHAPE, top_k=6)
    a, b = side(world.routes(), world), side(world.routes(seed=1, shape=soft), world)
    result = evaluate(MEASURE, (a, b), {})
    assert not np.isnan(result.values).any()
    assert any(c.startswith("By combine weight on both sides: b uses every expert") for c in result.caveats)
    for other in map(get, ("routing_distance", "prompt_difference")):
        for shape in (soft, world.SHAPE):
            caveats = evaluate(other, world.inputs_for(other, shape=shape), {}).caveats
            assert any(c.startswith("By combine weight on both sides: a and b use") for c in caveats) == (shape is soft)
    weights = [s.states["prompt_counts"]["weights"].sum(0) for s in (a, b)]
    loads = [(w / w.mean(-1, keepdim=True)).numpy() for w in weights]
    np.testing.assert_allclose(result.values, loads[1] - loads[0], atol=1e-12)


def test_only_shared_prompts_are_compared_and_the_answer_says_how_many(world):
    whole = side(world.routes(), world)
    state = whole.states["prompt_counts"]
    part = dataclasses.replace(whole, states={"prompt_counts": state.take(list(range(10)))})
    result = evaluate(MEASURE, (whole, part), {})
    assert result.prompts == 10
    assert (result.values == 0).all()
    assert "The sides hold [16, 10] prompts; only the 10 they share are compared." in result.caveats


def test_sides_without_a_prompt_in_common_are_refused(world):
    a, b = side(world.routes(), world), side(world.routes(tag="other "), world)
    with pytest.raises(NotComparable, match="no prompt in common"):
        evaluate(MEASURE, (a, b), {})


def test_statistics_of_one_checkpoint_over_different_prompts_are_refused(world):
    one, other = world.routes(), world.routes(tag="other ")
    states = {
        "prompt_counts": world.state_of("prompt_counts", [one]),
        "coactivation_counts": world.state_of("coactivation_counts", [other]),
    }
    with pytest.raises(NotComparable, match="statistics of one checkpoint hold different prompts"):
        evaluate(get("expert_load"), (world.Inputs(world.SHAPE, states),), {})


@pytest.mark.slow
def test_sign_flips_hold_their_level_where_prompts_are_not_independent_tokens(world):
    """Each prompt has a taste of its own, shared by both sides: the paired exchange must not mind."""
    rejected, found, draws = 0, 0, 60
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        sides = []
        taste = torch.randn(16, 6, generator=generator)
        for _ in range(2):
            batch = world.routes(lengths=(20,) * 16)
            noise = torch.randn(3, len(batch.keys), 6, generator=generator)
            indices = (taste[batch.keys.prompt] + noise).topk(2).indices
            sides.append(side(dataclasses.replace(batch, indices=indices), world))
        result = evaluate(MEASURE, tuple(sides), {})
        rejected += result.facts["sign-flip p"] <= 0.05
        found += (result.null.p <= 0.05).any()  # of 18 cells, not one: the p of each is corrected for all
    assert max(rejected, found) <= binom.ppf(0.999, draws, 0.05)
