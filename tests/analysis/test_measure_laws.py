"""What every measure owes, whoever writes the next one: found by walking the registry, a new file included."""

import copy
import dataclasses
import json
import math
import time

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob, UnknownName
from analysis.inference import evaluate
from analysis.knob import Range
from analysis.measure import FAMILIES, get, measures
from analysis.result import Interval, Null, Reason, Result
from analysis.slots import RouteBatch
from analysis.statistic import get as get_statistic
from tests.analysis.asked import by_number

EVERY = sorted(measures())
OF_TOKENS = [name for name in EVERY if measures()[name].statistics]
CASES = [
    (name, by_number(measures()[name]) | {knob.name: choice})
    for name in EVERY
    for knob in measures()[name].knobs
    for choice in (knob.choices or ((True,) if knob.kind == "bool" else ()))
    if not measures()[name].slow_if.get(knob.name) == choice
] + [(name, {}) for name in EVERY]
IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in knobs.items())}" for name, knobs in CASES]
# at their defaults in `make check`, at every choice of every knob in `make test`
MARKED = [pytest.param(name, knobs, marks=(pytest.mark.slow,) if knobs else ()) for name, knobs in CASES]
# Of the module, so that all laws of a case run one after another and share the plain answer.
every_case = pytest.mark.parametrize(("name", "knobs"), MARKED, ids=IDS, scope="module")

of_defaults = pytest.mark.parametrize(("name", "knobs"), [(name, {}) for name in EVERY], ids=EVERY, scope="module")


@pytest.fixture(scope="module")
def answered(world, name, knobs):
    """The plain answer to a case: nothing may change it."""
    measure = get(name)
    return evaluate(measure, world.inputs_for(measure), knobs)


def equal(one, other, **tolerance):
    np.testing.assert_allclose(one.values, other.values, **tolerance)
    for part in ("null", "interval"):
        left, right = getattr(one, part), getattr(other, part)
        assert type(left) is type(right)
        if isinstance(left, Reason):
            assert left == right
            continue
        for bound in ("low", "high"):
            np.testing.assert_allclose(getattr(left, bound), getattr(right, bound), **tolerance)
    assert one.axes == other.axes
    assert one.caveats == other.caveats
    assert one.facts.keys() == other.facts.keys()
    for name, fact in one.facts.items():
        if isinstance(fact, str):
            assert fact == other.facts[name], name
        else:
            assert fact == pytest.approx(other.facts[name], rel=1e-9, abs=1e-9, nan_ok=True), name


@every_case
def test_values_are_finite_or_nan_with_a_reason_and_of_the_declared_shape(name, knobs, answered):
    result = answered
    assert tuple(axis.name for axis in result.axes) == get(name).axes
    assert tuple(len(axis.labels) for axis in result.axes) == result.values.shape
    assert result.values.dtype == np.float64
    assert not np.isinf(result.values).any()
    assert result.tokens in (0, 12 * 16), "counted once, or left to who ran them"
    if np.isnan(result.values).any():
        assert any(caveat.startswith("NaN: ") for caveat in result.caveats)
    for part in (result.null, result.interval):
        assert (
            isinstance(part, Reason) or np.broadcast_shapes(part.low.shape, result.values.shape) == result.values.shape
        )
        assert not isinstance(part, Reason) or part.reason


@every_case
def test_a_fully_soft_router_gives_a_number_or_says_why_not(name, knobs, world):
    measure = get(name)
    soft = dataclasses.replace(world.SHAPE, top_k=6)
    result = evaluate(measure, world.inputs_for(measure, shape=soft), knobs)
    if np.isnan(result.values).any():
        assert any(caveat.startswith("NaN: ") for caveat in result.caveats)
    # Sides that have nothing to do with each other have no pairs to compare.
    unpaired = measure.settle(knobs).get("matching", "identity") != "identity"
    assert np.isnan(result.values).all() == (
        measure.needs_selection
        or unpaired
        or knobs == {"weighting": "count"}
        or knobs.get("show") == "matched"
        or knobs.get("pair") == "shared"  # these worlds have no shared expert
    )


@pytest.mark.slow
@of_defaults
def test_the_same_question_twice_has_the_same_answer_and_inputs_stay_as_they_were(name, knobs, world, answered):
    measure = get(name)
    sides = world.inputs_for(measure)
    kept = copy.deepcopy(sides)
    equal(answered, evaluate(measure, sides, knobs), rtol=0, atol=0)
    for old, new in zip(kept, sides, strict=True):
        for name, state in old.states.items():
            for key, array in state.arrays.items():
                torch.testing.assert_close(array, new.states[name][key], rtol=0, atol=0, equal_nan=True)
        assert all(torch.equal(tensor, new.weights[key]) for key, tensor in old.weights.items())


@pytest.mark.plain
@every_case
def test_renaming_experts_permutes_expert_axes_and_nothing_else(name, knobs, world, answered):
    measure, before, order = get(name), answered, torch.tensor([3, 0, 5, 1, 2, 4])
    sides = world.inputs_for(measure, change=lambda batch: world.permute_experts(batch, order))
    back = order.argsort()
    sides = tuple(dataclasses.replace(side, weights={k: w[:, back] for k, w in side.weights.items()}) for side in sides)
    after = evaluate(measure, sides, knobs)

    def renamed(array, rank):
        # A bound may lack leading axes or have size 1 along one: broadcasting fills both.
        array = np.broadcast_to(array, before.values.shape)
        for axis, label in enumerate(measure.axes):
            if label.removesuffix("_b") == "expert":
                # An axis may list the experts of several layers or checkpoints, one after the other.
                places = np.arange(array.shape[axis]).reshape(-1, len(back))[:, back.numpy()].ravel()
                array = array.take(places, axis)
        return array

    def bands(result, change):
        parts = {"values": result.values}
        for part in (result.null, result.interval):
            if not isinstance(part, Reason):
                parts |= {f"{part.how} {bound}": getattr(part, bound) for bound in ("low", "high")}
        return {key: change(value, 0) for key, value in parts.items()}

    expected, seen = bands(before, renamed), bands(after, lambda x, _: np.broadcast_to(x, before.values.shape))
    assert expected.keys() == seen.keys()
    for key in expected:
        np.testing.assert_allclose(seen[key], expected[key], rtol=1e-9, atol=1e-9, err_msg=key)


@pytest.mark.plain
@every_case
def test_the_order_of_tokens_prompts_and_shards_changes_nothing(name, knobs, world, answered):
    measure = get(name)
    if not measure.statistics:
        return
    shuffled = []
    for side in world.inputs_for(measure, change=_shuffled(world)):
        order = torch.randperm(16, generator=torch.Generator().manual_seed(5)).tolist()
        shuffled.append(dataclasses.replace(side, states={k: s.take(order) for k, s in side.states.items()}))
    equal(answered, evaluate(measure, tuple(shuffled), knobs), rtol=1e-9, atol=1e-9)


def _shuffled(world):
    def change(batch):
        return world.take(batch, torch.randperm(len(batch.keys), generator=torch.Generator().manual_seed(3)))

    return change


@pytest.mark.slow
@every_case
def test_json_carries_the_answer_whole(name, knobs, answered):
    text = json.dumps(answered.to_json(), allow_nan=False)
    back = Result.from_json(json.loads(text))
    equal(answered, back, rtol=0, atol=0)
    assert back.to_json() == answered.to_json()


@pytest.mark.slow
@of_defaults
def test_half_precision_is_accepted(name, knobs, world, answered):
    measure = get(name)
    half = lambda batch: dataclasses.replace(batch, weights=batch.weights.bfloat16())  # noqa: E731
    sides = world.inputs_for(measure, change=half)
    sides = tuple(dataclasses.replace(s, weights={k: w.bfloat16() for k, w in s.weights.items()}) for s in sides)
    np.testing.assert_allclose(evaluate(measure, sides, knobs).values, answered.values, atol=0.05)


@pytest.mark.plain
@pytest.mark.parametrize("name", EVERY)
def test_an_answer_takes_less_than_a_second(name, world):
    measure = get(name)
    sides = world.inputs_for(measure)
    start = time.process_time()
    evaluate(measure, sides, {})
    assert time.process_time() - start < 1


def _with_a_spectrum(batch):
    """Experts' inputs that vary more in some directions: the axes of round ones stay noise, however many tokens."""
    if isinstance(batch, RouteBatch):
        return batch
    return dataclasses.replace(batch, expert_input=batch.expert_input * 2.0 ** -torch.arange(batch.shape.model))


def _whole_and_quarter(measure):
    """64 prompts of 12 tokens, or of as few as all fit into a layer's sample, which says no more when full; and 16.

    A quarter of each prompt where the value is of one prompt.
    """
    if measure.of_each_prompt:
        return (160,) * 8, (40,) * 8
    specs = get_statistic(measure.statistics[0]).groups.get("sample", {}).values()
    length = min([12] + [spec.axes[1] // 64 for spec in specs if spec.axes[1] != "expert"])
    return (length,) * 64, (length,) * 16


WITH_INTERVAL = [name for name in OF_TOKENS if not measures()[name].interval_reason]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_INTERVAL)
def test_a_quarter_of_the_tokens_widens_the_interval(name, world):
    """A quarter of the prompts: d is already in standard deviations, so fewer tokens a prompt do not widen it."""
    measure, widths = dataclasses.replace(get(name), null=None), []
    for lengths in _whole_and_quarter(measure):
        found = []
        for seed in range(5):
            sides = world.inputs_for(measure, seed, lengths=lengths, change=_with_a_spectrum)
            interval = evaluate(measure, sides, by_number(measure)).interval
            found.append(np.nanmean(interval.high - interval.low))
        widths.append(np.mean(found))
    assert widths[1] > 1.3 * widths[0]


@pytest.mark.parametrize("name", EVERY)
def test_a_measure_says_what_it_is(name):
    measure = get(name)
    assert measure.family in FAMILIES
    for text in (measure.title, measure.question, measure.unit, measure.source, measure.caveat):
        assert text.strip()
    assert measure.question.endswith("?")


@of_defaults
def test_intervals_and_nulls_are_given_or_excused(name, knobs, answered):
    measure, result = get(name), answered
    assert isinstance(result.null, Null) or result.null.reason == measure.null_reason
    if measure.statistics and not measure.interval_reason:
        assert isinstance(result.interval, Interval if np.isfinite(result.values).any() else Reason)
    if not measure.statistics:
        assert result.interval == Reason("exact: reads weights only")


@pytest.mark.parametrize("name", EVERY)
def test_knobs_refuse_what_they_do_not_know(name):
    with pytest.raises(UnknownName, match="no knob 'nosuch'"):
        get(name).settle({"nosuch": 1})
    for knob in get(name).knobs:
        with pytest.raises(BadKnob, match=knob.name):
            get(name).settle({knob.name: "nonsense"})


NUMBERS = [(name, knob) for name in EVERY for knob in get(name).knobs if knob.kind in ("int", "float")]
of_numbers = pytest.mark.parametrize(("name", "knob"), NUMBERS, ids=[f"{name}-{knob.name}" for name, knob in NUMBERS])


@of_numbers
def test_a_number_has_a_range_and_nothing_outside_it_is_taken(name, knob):
    measure, ends = get(name), (knob.range.low, knob.range.high)
    beyond = (knob.range.low - 1, knob.range.high + 1, -(2**70), 2**70, *(() if knob.range.ends else ends))
    for value in beyond:
        with pytest.raises(BadKnob, match=f"knob {knob.name!r} is .* it takes a.* number, "):
            measure.settle({knob.name: value})
    for value in (knob.default, *(ends if knob.range.ends else ())):
        assert measure.settle({knob.name: value})[knob.name] == value


@of_numbers
def test_a_number_that_is_none_is_refused(name, knob):
    for value in (math.nan, math.inf, -math.inf, True, None):
        with pytest.raises(BadKnob, match=f"knob {knob.name!r} is {value!r}; it takes"):
            get(name).settle({knob.name: value})


def test_a_seed_is_what_every_generator_takes():
    seeds = [knob for _, knob in NUMBERS if knob.name == "seed"]
    assert seeds and {knob.range for knob in seeds} == {Range(0, 2**32 - 1)}


def test_unknown_measures_name_the_known():
    with pytest.raises(UnknownName, match="expert_load"):
        get("expert_lode")
