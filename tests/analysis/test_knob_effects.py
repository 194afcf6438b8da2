"""Every choice of every knob changes something that is answered: a value, a fact, or where chance lies."""

import dataclasses
from functools import cache

import pytest
import torch

from analysis.alignment import aligned
from analysis.inference import _call, _values, content_generator
from analysis.measure import get, measures
from tests.analysis.asked import by_number
from tests.knobs import others

CASES = [(name, knob) for name, measure in measures().items() for knob in measure.knobs]

BESIDE = {
    ("dead_experts", "count"): {"share": 1.0},
    ("living_experts", "count"): {"share": 1.0},
    ("expert_contrast", "first"): {"second": -1},
    ("selection_bias", "rate"): {"updates": 5},
    ("routing_margin", "quantile"): {"show": "quantile"},
    ("signature_baselines", "seed"): {"method": "simulated"},
}
"""Knobs that show only beside another one."""

TURNED = {"n": 1, "min_count": 40, "second": 2, "layer": 1, "folds": 3}
"""Numbers for which twice the default is more than these slots hold, or less than they have anyway."""

EXACT = "five probes of five dimensions are exact, and so is what auto chooses here"
PROJECTED = "of UMAP alone, which takes a minute to compile: test_projections turns them"
ALONE = "sides that have nothing to do with each other have no partners: test_matching turns them"
WEIGHED = ("co_selection", "router_row", "centroid", "jacobian", "output")
SAME = {
    "jacobian_alignment method=exact": EXACT,
    "redundancy_map method": EXACT,
    **{f"expert_matching {evidence}": ALONE for evidence in WEIGHED},
    "centroid_map neighbours": PROJECTED,
    "centroid_map seed": PROJECTED,
    "expert_embedding neighbours": PROJECTED,
    "expert_embedding seed": PROJECTED,
    "router_row_map neighbours": PROJECTED,
    "router_row_map seed": PROJECTED,
    "signature_embedding neighbours": PROJECTED,
    "signature_embedding seed": PROJECTED,
    "weighting=count": "what auto chooses where experts are chosen",
}
"""What changes nothing here, and why: a knob, a choice of it, or a choice of any measure."""


@pytest.fixture(scope="module")
def sides(world):
    """Three experts a token, so that ranks have neighbours that are not all the others; three categories."""
    shape = dataclasses.replace(world.SHAPE, top_k=3)

    def varied(batch):
        token, prompts = batch.keys.token, batch.prompts
        keys = dataclasses.replace(batch.keys, next=token.roll(1), predicted=token.roll(2))
        categories = tuple("abc"[n % 3] for n in range(len(prompts)))
        return dataclasses.replace(batch, keys=keys, prompts=dataclasses.replace(prompts, categories=categories))

    def made(name):
        return aligned(world.inputs_for(get(name), shape=shape, lengths=(14, 40) * 8, change=varied))[0]

    return cache(made)


@pytest.fixture(scope="module")
def told(sides):
    """Values, facts and null of a measure, with these knobs as (name, value) pairs."""

    def answer(name, knobs):
        measure, own = get(name), sides(name)
        settled = measure.settle(dict(knobs))
        raw = _values(_call(measure.function, measure, own, settled))
        chance = None
        if measure.null:
            settled["generator"] = content_generator(measure, own)
            chance = _call(measure.null, measure, own, settled)
        return torch.nan_to_num(raw.values.double()), repr(dict(raw.facts)), repr(chance)

    return cache(answer)


def differs(one, other):
    same = one[0].shape == other[0].shape and torch.allclose(one[0], other[0], rtol=1e-9, atol=1e-12)
    return not same or one[1:] != other[1:]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "knob"), CASES, ids=[f"{name}-{knob.name}" for name, knob in CASES])
def test_a_turned_knob_changes_the_answer(name, knob, told):
    base = ({} if knob.name == "matching" else by_number(get(name))) | BESIDE.get((name, knob.name), {})
    number = TURNED.get(f"{name} {knob.name}", TURNED.get(knob.name))
    for value in others(knob) if number is None else [number]:
        if get(name).slow_if.get(knob.name) == value:
            continue
        turned = differs(told(name, tuple(base.items())), told(name, tuple((base | {knob.name: value}).items())))
        excused = {f"{name} {knob.name}={value}", f"{name} {knob.name}", f"{knob.name}={value}"} & SAME.keys()
        assert turned != bool(excused), value


def test_every_excuse_is_of_something_there_is():
    known = {f"{name} {knob.name}" for name, knob in CASES}
    known |= {f"{at}{knob.name}={value}" for name, knob in CASES for at in (f"{name} ", "") for value in others(knob)}
    assert SAME.keys() <= known
    assert BESIDE.keys() <= {(name, knob.name) for name, knob in CASES}
