"""A null that reads step 0 of the same run: found by the service, part of the key, run once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.result import Null, Reason
from backend.question import Question, ask
from backend.runners.messages import CaptureTask
from backend.services import Services, open_services
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.inline import InlineRunner
from tests.backend.test_question import CHECKPOINT, WORDS

FEW = tiny_olmoe.prompts(8)
MEASURE = "jacobian_alignment"


@pytest.fixture
def services(tmp_path: Path, one_thread: None) -> Iterator[Services]:
    for seed, name in enumerate(("run/step-00000", "run/step-00020", "other/step-00020")):
        tiny_olmoe.save(tmp_path / "root" / name, seed=seed)
    settings = Settings(
        data=tmp_path / "data", store=tmp_path / "store", device="cpu", extra_roots=(tmp_path / "root",)
    )
    with open_services(settings, InlineRunner(settings.store)) as found:
        yield found


def asked(services: Services, name: str, **knobs: str) -> Question:
    return ask(MEASURE, [services.checkpoints.find(name)], FEW, knobs, start_of=services.checkpoints.start_of)


def test_the_null_of_a_trained_step_is_what_its_run_began_with(services: Services) -> None:
    start = services.answering.answer(asked(services, "run/step-00000"))
    before = len(services.runner.log)  # type: ignore[attr-defined]
    trained = asked(services, "run/step-00020", baseline="step 0")
    answer = services.answering.answer(trained)
    pairs = start.result.values[:, *np.triu_indices(4, 1)]
    null = answer.result.null
    assert isinstance(null, Null) and "at step 0 of the same run" in null.how
    np.testing.assert_allclose(null.mean[:, 0, 1], pairs.mean(-1), rtol=1e-9)
    np.testing.assert_allclose(null.low[:, 0, 1], np.quantile(pairs, 0.025, axis=-1), rtol=1e-9)
    assert answer.result.facts["mean over pairs at step 0"] == pytest.approx(pairs.mean())
    # The pass of step 0 was there already: one is run, of the step that was asked about.
    passes = [t.checkpoint.id for t in services.runner.log[before:] if isinstance(t, CaptureTask)]  # type: ignore[attr-defined]
    assert passes == ["run/step-00020"]
    assert [c["id"] for c in answer.provenance["checkpoints"]] == ["run/step-00020"]
    assert answer.provenance["start"]["id"] == "run/step-00000"
    assert services.answering.stored(trained) is not None


def test_what_has_no_step_before_it_is_answered_with_the_reason(services: Services) -> None:
    for name in ("run/step-00000", "other/step-00020"):
        answer = services.answering.answer(asked(services, name, baseline="step 0"))
        assert isinstance(answer.result.null, Reason) and "no step 0 of the same run" in answer.result.null.reason
        assert "start" not in answer.provenance


def test_step_0_is_held_as_the_step_that_is_asked_about_is(services: Services) -> None:
    question = asked(services, "run/step-00020@bf16", baseline="step 0")
    assert question.start is not None and question.start.id == "run/step-00000@bf16"
    assert asked(services, "run/step-00020").start is None


def test_another_step_0_is_another_question() -> None:
    first, second = (replace(CHECKPOINT, id="free/step-00000", fingerprint=f"s{n}") for n in range(2))
    keys = [
        ask(MEASURE, [CHECKPOINT], WORDS, {"baseline": baseline}, start_of=lambda c, start=start: start).key
        for baseline, start in (("step 0", first), ("step 0", second), ("step 0", None), ("random experts", first))
    ]
    assert len(set(keys)) == 4
    assert keys[3] == ask(MEASURE, [CHECKPOINT], WORDS).key
