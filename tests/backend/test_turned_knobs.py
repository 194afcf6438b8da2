"""No knob of any measure needs the model again: by the plan at every value, and by what the worker was given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from analysis.measure import STEPS, Measure, measures
from backend import planner
from backend.checkpoints import Checkpoint
from backend.question import Question, ask
from backend.runners.messages import CaptureTask
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.test_planner import CHECKPOINT, Kept, words
from tests.backend.trace_files import Bench, bench
from tests.knobs import others

TURNED = [measure for measure in measures().values() if measure.knobs]
WORDS = tiny_olmoe.prompts(32, "turned")


def asked(measure: Measure, checkpoints: list[Checkpoint], prompts, **knobs) -> Question:
    return ask(measure.name, checkpoints, prompts if measure.statistics else None, knobs)


def test_after_the_pass_of_its_defaults_no_knob_of_any_measure_plans_another() -> None:
    needed = []
    for measure in TURNED:
        sides = [replace(CHECKPOINT, id=f"free/{n}", run="free", step=n, fingerprint=f"f{n}") for n in (0, 20)]
        sides, kept = sides[: max(1, len(measure.sides), 2 * (measure.sides == STEPS))], Kept()
        first = planner.plan(asked(measure, sides, words(20)), kept)
        assert bool(first.price.passes) == bool(measure.statistics)
        kept.run(first)
        for knob in measure.knobs:
            for value in others(knob):
                if planner.plan(asked(measure, sides, words(20), **{knob.name: value}), kept).price.passes:
                    needed.append((measure.name, knob.name, value))
    assert not needed


@pytest.fixture(scope="module")
def opened(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One thread: these models are too small to share."""
    here, before = tmp_path_factory.mktemp("turned"), torch.get_num_threads()
    torch.set_num_threads(1)
    with bench(Settings(data=here, store=here / "store", device="cpu", extra_roots=(tiny_models,))) as found:
        yield found
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("measure", TURNED, ids=[measure.name for measure in TURNED])
def test_the_worker_answers_a_turned_knob_without_a_pass(measure: Measure, opened: Bench) -> None:
    names = ["tiny", "other"][: max(1, len(measure.sides), 2 * (measure.sides == STEPS))]
    checkpoints, answering = [opened.services.checkpoints.find(name) for name in names], opened.services.answering
    answering.answer(asked(measure, checkpoints, WORDS))
    before = len(opened.runner.log)
    answering.answer(asked(measure, checkpoints, WORDS, **turned(measure)))
    log = opened.runner.log[before:]
    assert log and not [task for task in log if isinstance(task, CaptureTask)]


def turned(measure: Measure) -> dict:
    """A knob and a value that are no dearer than the default, and right for four experts and two categories."""
    plain = {"expert_contrast": {"second": -1}, "router_orthogonality": {"groups": 2}}.get(measure.name)
    every = [(knob.name, value) for knob in measure.knobs for value in others(knob)]
    return plain or dict([next(one for one in every if measure.slow_if.get(one[0]) != one[1])])
