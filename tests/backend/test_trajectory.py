"""A question about an ordered list of checkpoints goes the whole way: each is run once and named on the axis."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.measure import STEPS, measures
from tests.backend import tiny_olmoe
from tests.backend.live import Live

pytestmark = pytest.mark.slow

OF_STEPS = sorted(name for name, measure in measures().items() if measure.sides == STEPS and measure.statistics)


@pytest.mark.parametrize("name", OF_STEPS)
def test_each_checkpoint_is_run_once_and_named_in_order(name: str, live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, f"followed by {name}", start=9000 + 100 * OF_STEPS.index(name)))
    before = len(live.runner.log)
    answer = live.answer(name, words, ("tiny", "other"))
    assert [task.checkpoint.id for task in live.passes(before)] == ["tiny", "other"]
    assert [c["id"] for c in answer["provenance"]["checkpoints"]] == ["tiny", "other"]
    for axis in answer["axes"]:
        if axis["name"] == "step":
            assert set(axis["labels"]) <= {"tiny", "other"}
    assert live.http.get(f"/questions/{answer['provenance']['key']}").json() == answer
    listed = next(a for a in live.http.get("/questions").json()["questions"] if a["key"] == answer["provenance"]["key"])
    assert listed["checkpoints"] == ["tiny", "other"]
    back = live.answer(name, words, ("other", "tiny"))
    assert np.shape(back["values"]) == np.shape(answer["values"])
    assert back["provenance"]["key"] != answer["provenance"]["key"] and len(live.passes(before)) == 2


def test_one_checkpoint_is_no_trajectory(live: Live) -> None:
    reply = live.ask(OF_STEPS[0], live.add(tiny_olmoe.prompts(4, "alone", start=9900)))
    assert reply.status_code == 422
    assert "two or more checkpoints in the order of training; it was given 1: tiny" in reply.json()["detail"]
