"""Where 64 probes stand for all directions unrelated experts scatter by more, and every null of theirs knows it."""

import dataclasses

import numpy as np
import pytest

from analysis import jacobians
from analysis.evidence import likeness
from analysis.inference import evaluate
from analysis.measure import get
from tests.analysis.test_jacobian_chance import inside, random_experts, side_of

MODEL = 256


@pytest.fixture
def two(world, monkeypatch):
    """Two checkpoints of sixteen unrelated experts, too dear to be multiplied out."""
    monkeypatch.setattr(jacobians, "AFFORDABLE", 0)
    return tuple(side_of(world, random_experts(seed, count=16, model=MODEL))[0] for seed in (0, 50))


@pytest.mark.parametrize("baseline", ["random experts", "shuffled weights", "shuffled outputs"])
def test_the_band_of_a_sketch_holds_unrelated_experts_as_the_sketch_sees_them(two, baseline):
    found = evaluate(get("jacobian_alignment"), two[:1], {"baseline": baseline})
    assert found.facts["method"] == "sketch"
    assert 0.90 <= inside(found, (0, *np.triu_indices(16, 1))).mean() <= 0.995


def test_the_drift_of_unrelated_experts_lies_in_its_band_where_it_is_sketched(two):
    found = evaluate(get("jacobian_drift"), two, {"matching": "identity"})
    assert inside(found, (0,)).mean() > 0.8
    assert f"1/sqrt({MODEL} x 64)" in found.null.how


def test_no_unrelated_experts_are_taken_for_one_another_where_their_likeness_is_sketched(two):
    found = likeness(*two, "jacobian")
    assert (found.cosines.abs() < found.bound).all()


def test_the_map_of_pairs_knows_how_far_a_sketch_scatters(world):
    shape = dataclasses.replace(world.SHAPE, model=MODEL, hidden=16)
    sides = world.inputs_for(get("redundancy_map"), shape=shape)
    found = evaluate(get("redundancy_map"), sides, {"method": "sketch", "representation": "centroid cosine"})
    y = found.values[:, 1]
    assert ((found.null.low[1] <= y) & (y <= found.null.high[1])).mean() > 0.9
