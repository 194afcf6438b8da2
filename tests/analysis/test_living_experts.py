"""Births and deaths of experts: planted ones are found where they were, chance is what simulation says."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob, NotComparable, TooFew
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.nulls import uniform_loads

MEASURE = get("living_experts")


def steps_of(world, *loads):
    """Checkpoints whose experts served so many tokens: one table [layer, expert] a checkpoint, all in one prompt."""
    (side,) = world.inputs_for(get("expert_load"))
    sides = []
    for label, table in enumerate(loads):
        state = side.prompt_counts
        counts = torch.zeros_like(state["served"])
        counts[0] = torch.tensor(table)
        arrays = {**state.arrays, "served": counts, "selected": counts}
        state = dataclasses.replace(state, arrays=arrays)
        sides.append(Inputs(side.shape, {"prompt_counts": state}, {}, str(100 * label)))
    return tuple(sides)


ALL = [[4, 4, 4, 4, 4, 4]] * 3
BORN = [[4, 4, 4, 4, 4, 4], [0, 0, 6, 6, 6, 6], [4, 4, 4, 4, 4, 4]]


def test_a_birth_and_a_death_are_found_where_they_were_planted(world):
    result = evaluate(MEASURE, steps_of(world, BORN, ALL, BORN[::-1]), {})
    expected = np.ones((3, 3, 6))
    expected[0, 1, :2] = expected[2, 1, :2] = 0
    np.testing.assert_array_equal(result.values, expected)
    assert (result.facts["births"], result.facts["deaths"]) == (2, 2)
    assert result.facts["first births"] == "layer 2 at step 100"
    assert result.facts["first deaths"] == "layer 2 at step 200"
    assert (result.facts["in use at the first step"], result.facts["in use at the last step"]) == (16, 16)


def test_nothing_is_born_where_nothing_changes(world):
    result = evaluate(MEASURE, steps_of(world, ALL, ALL), {})
    assert result.values.all() and result.facts["births"] == result.facts["deaths"] == 0
    assert "first births" not in result.facts


def test_one_token_is_enough_where_no_more_is_asked(world):
    table = [[1, 79, 80, 80, 80, 0]] * 3
    for share, expected in ((0.0, [1, 1, 1, 1, 1, 0]), (0.1, [0, 1, 1, 1, 1, 0])):
        values = evaluate(MEASURE, steps_of(world, table, table), {"share": share}).values
        np.testing.assert_array_equal(values[0, 0], expected)


def test_the_bar_is_a_share_of_an_equal_load(world):
    table = [[10, 1, 4, 4, 4, 1]] * 3
    assert evaluate(MEASURE, steps_of(world, table, table), {"share": 0.2}).values.all()
    below = evaluate(MEASURE, steps_of(world, table, table), {"share": 0.25}).values
    np.testing.assert_array_equal(below[0, 0], [1, 0, 1, 1, 1, 0])
    with pytest.raises(BadKnob, match=r"'share' is -0\.1; it takes a number, 0 to"):
        evaluate(MEASURE, steps_of(world, table, table), {"share": -0.1})


def test_a_layer_without_tokens_is_undefined_and_nobody_died_there(world):
    empty = [[0] * 6, *ALL[1:]]
    result = evaluate(MEASURE, steps_of(world, ALL, empty), {})
    assert np.isnan(result.values[1, 0]).all() and np.isfinite(result.values[1, 1:]).all()
    assert result.facts["deaths"] == 0 and any(c.startswith("NaN: ") for c in result.caveats)


def test_births_expected_by_chance_are_those_of_simulated_blind_routing(world):
    """12 tokens, 2 of 6 experts: a bar at half of an equal load is passed by some and not by others."""
    lengths = (1,) * 12 + (0,) * 4
    sides = tuple(
        dataclasses.replace(world.inputs_for(get("expert_load"), seed, lengths=lengths)[0], label=str(seed))
        for seed in range(3)
    )
    result = evaluate(MEASURE, sides, {"share": 0.5, "count": "selected"})
    loads = uniform_loads(torch.full((4000, 3, 3), 12), 2, 6, torch.Generator().manual_seed(0))
    alive = loads > 0.5 * 4
    born, died = ((alive[:, 1:] > alive[:, :-1]).sum((1, 2, 3)), (alive[:, 1:] < alive[:, :-1]).sum((1, 2, 3)))
    assert result.facts["births expected of blind routing"] == pytest.approx(float(born.double().mean()), rel=0.03)
    assert result.facts["deaths expected of blind routing"] == pytest.approx(float(died.double().mean()), rel=0.03)
    np.testing.assert_allclose(result.null.mean[0], float(alive.double().mean()), atol=0.01)


def test_one_step_and_other_sizes_are_refused(world):
    with pytest.raises(TooFew, match="needs two"):
        evaluate(MEASURE, steps_of(world, ALL), {})
    one, two = steps_of(world, ALL, ALL)
    wider = dataclasses.replace(two, shape=dataclasses.replace(two.shape, experts=8))
    with pytest.raises(NotComparable, match="no experts in common"):
        evaluate(MEASURE, (one, wider), {})
