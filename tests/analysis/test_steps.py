"""A measure of an ordered list of checkpoints: any number of sides, in their order, on an axis of their names."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.errors import BadDeclaration, NotComparable
from analysis.inference import evaluate
from analysis.measure import Chance, measure
from analysis.result import Interval, Null


def said(**changes):
    words = {"title": "t", "question": "q?", "unit": "u", "family": "trajectories", "source": "s", "axes": ("step",)}
    return measure(**({"reads": ("prompt_counts",), **words} | changes))


@pytest.fixture
def first_load(monkeypatch):
    from analysis import measure as module

    monkeypatch.setattr(module, "_REGISTRY", dict(module._REGISTRY))

    def first_load(steps, *, layer: int = 0):
        """Share of the first expert in one layer at each step."""
        selected = [step.prompt_counts["selected"].sum(0)[layer].double() for step in steps]
        return torch.stack([counts[0] / counts.sum() for counts in selected])

    made = said()(first_load)

    @made.chance
    def null(steps, *, layer, generator):
        """Whatever."""
        wide = torch.full((len(steps),), 1 / 6, dtype=torch.float64)
        return Chance(wide, wide - 0.1, wide + 0.1, "made up")

    return made


def test_all_steps_come_in_order_under_their_names(first_load, world):
    sides = world.inputs_for(first_load)
    result = evaluate(first_load, sides, {"layer": 1})
    assert [axis.name for axis in result.axes] == ["step"] and result.axes[0].labels == ("0", "10", "20")
    expected = [
        int(s.prompt_counts["selected"].sum(0)[1, 0]) / int(s.prompt_counts["selected"].sum(0)[1].sum()) for s in sides
    ]
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)
    assert isinstance(result.null, Null) and isinstance(result.interval, Interval)
    back = evaluate(first_load, sides[::-1], {"layer": 1})
    np.testing.assert_allclose(back.values, expected[::-1], rtol=1e-12)
    assert back.axes[0].labels == ("20", "10", "0")


def test_two_steps_or_five_are_as_good_as_three(first_load, world):
    side = world.inputs_for(first_load)[0]
    for count in (2, 5):
        many = tuple(dataclasses.replace(side, label=f"s{n}") for n in range(count))
        assert evaluate(first_load, many, {}).values.shape == (count,)


def test_only_the_prompts_of_all_steps_are_followed(first_load, world):
    sides = world.inputs_for(first_load)
    fewer = {name: state.take(list(range(12))) for name, state in sides[1].states.items()}
    result = evaluate(first_load, (sides[0], dataclasses.replace(sides[1], states=fewer), sides[2]), {})
    assert result.prompts == 12 and any("[16, 12, 16]" in caveat for caveat in result.caveats)
    other = world.inputs_for(first_load)[0]
    states = {"prompt_counts": world.state_of("prompt_counts", [world.routes(tag="other ")])}
    with pytest.raises(NotComparable, match="no prompt in common"):
        evaluate(first_load, (sides[0], dataclasses.replace(other, states=states)), {})


def test_a_step_without_a_name_is_numbered(first_load, world):
    sides = tuple(dataclasses.replace(side, label="") for side in world.inputs_for(first_load))
    assert evaluate(first_load, sides, {}).axes[0].labels == ("0", "1", "2")


def test_steps_stand_alone_in_a_signature():
    def mixed(steps, prompt_counts):
        """Nothing."""

    def crowd(a, b, steps):
        """Nothing."""

    for function in (mixed, crowd):
        with pytest.raises(BadDeclaration, match="the one argument steps"):
            said()(function)
