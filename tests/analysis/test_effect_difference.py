"""The effect of the task on routing in one checkpoint less that in another: planted, renamed, soft."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.errors import NotComparable
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.nulls import holm
from analysis.result import Reason


def side(batch, world):
    return Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])})


def of_tasks(world, seed, *layers, lengths=(30,) * 24):
    """Blind routing, but for layers in which the categories a and b like experts of their own."""
    batch = world.routes(seed, lengths=lengths)
    scores = torch.rand(*batch.indices.shape[:2], 6, generator=torch.Generator().manual_seed(seed))
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    for layer in layers:
        scores[layer, ~second, :2] += 0.3
        scores[layer, second, 3:5] += 0.3
    return dataclasses.replace(batch, indices=scores.topk(2).indices)


def asked(a, b, **knobs):
    return evaluate(get("effect_difference"), (a, b), knobs)


@pytest.mark.parametrize("knobs", [{}, {"form": "noise_corrected"}, {"weighting": "weight"}, {"centred": True}])
def test_it_is_the_effect_of_b_minus_that_of_a_and_turns_its_sign_with_them(knobs, world):
    a, b = side(of_tasks(world, 0, 0), world), side(of_tasks(world, 1, 0, 2), world)
    plain = [evaluate(get("signature_effect"), (s,), knobs) for s in (a, b)]
    one, other = asked(a, b, **knobs), asked(b, a, **knobs)
    np.testing.assert_allclose(one.values, plain[1].values - plain[0].values, atol=1e-12)
    np.testing.assert_allclose(one.values, -other.values, atol=1e-12)
    effects = [p.facts["Cohen's d"] for p in plain]
    assert [one.facts[f"Cohen's d of {name}"] for name in ("a", "b")] == pytest.approx(effects)
    assert one.facts["difference for the mean over layers"] == pytest.approx(effects[1] - effects[0])


def test_a_checkpoint_does_not_differ_from_itself_under_other_numbers(world):
    batch = of_tasks(world, 0, 1)
    renamed = world.permute_experts(batch, torch.tensor([3, 0, 5, 1, 2, 4]))
    result = asked(side(batch, world), side(renamed, world))
    for numbers in (result.values, result.interval.low, result.interval.high):
        np.testing.assert_allclose(numbers, 0, atol=1e-9)
    assert (result.null.p == 1).all()


def test_the_layer_that_learnt_the_task_is_told_by_its_interval_and_no_other(world):
    result = asked(side(of_tasks(world, 0, 0), world), side(of_tasks(world, 1, 0, 1), world))
    assert result.interval.low[1] > 0.5
    assert (result.interval.low[[0, 2]] < 0).all() and (result.interval.high[[0, 2]] > 0).all()
    assert result.null.p[1] < 0.01 < 0.05 < result.null.p[[0, 2]].min()
    assert result.facts["layers that differ beyond chance (Holm)"] == "1 of 3"
    assert result.facts["p of the surest layer"] == result.null.p[1]


def test_a_fully_soft_side_is_compared_by_weight_on_both(world):
    soft = dataclasses.replace(world.SHAPE, top_k=6)
    a, b = side(of_tasks(world, 0, 0), world), side(world.routes(1, soft, (30,) * 24), world)
    found = asked(a, b)
    plain = [evaluate(get("signature_effect"), (s,), {"weighting": "weight"}).values for s in (a, b)]
    np.testing.assert_allclose(found.values, plain[1] - plain[0], atol=1e-12)
    assert any("By combine weight on both sides: b uses every expert" in caveat for caveat in found.caveats)


def test_prompts_of_too_few_blocks_have_no_chance_and_say_why(world):
    few = [side(world.take(of_tasks(world, seed, 0), range(90)), world) for seed in (0, 1)]
    kept = [i for i, block in enumerate(few[0].prompt_counts.prompts.blocks) if block in (0, 1, 2)]
    sides = [Inputs(s.shape, {"prompt_counts": s.prompt_counts.take(kept)}) for s in few]
    assert isinstance(asked(*sides).null, Reason)


def test_holms_correction_of_four_cases_by_hand():
    found = holm(torch.tensor([0.01, 0.04, 0.03, torch.nan, 0.9]).double())
    np.testing.assert_allclose(found, [0.04, 0.09, 0.09, np.nan, 0.9])


def test_other_layers_are_refused(world):
    fewer = dataclasses.replace(world.SHAPE, layers=("1", "2"))
    with pytest.raises(NotComparable, match="a has 3 MoE layers"):
        asked(side(of_tasks(world, 0), world), side(world.routes(0, fewer, (30,) * 24), world))
