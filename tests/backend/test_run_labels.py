"""Names of steps: read as they are written, put in the order of training, refused where they have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.checkpoints.labels import ordered, ordered_repositories, read
from backend.checkpoints.tokens import tokens_at
from backend.errors import Refusal

BILLION = 10**9


@pytest.mark.parametrize(
    ("text", "step", "tokens", "stage"),
    [
        ("step-00020", 20, None, None),
        ("step1000", 1000, None, None),
        ("step1000-tokens4B", 1000, 4 * BILLION, None),
        ("step0-tokens0B", 0, 0, None),
        ("step1223842-tokens5100B", 1223842, 5100 * BILLION, None),
        ("step10-tokens1.5T", 10, 1500 * BILLION, None),
        ("stage1-step1000-tokens5B", 1000, 5 * BILLION, "stage1"),
        ("stage2-ingredient3-step200-tokens1B", 200, BILLION, "stage2-ingredient3"),
        ("iter_0001000", 1000, None, None),
        ("global_step100", 100, None, None),
        ("checkpoint-500", 500, None, None),
    ],
)
def test_a_name_is_read_as_it_is_written(text: str, step: int, tokens: int | None, stage: str | None) -> None:
    found = read(text)
    assert found is not None
    assert (found.step, found.tokens, found.stage) == (step, tokens, stage)


@pytest.mark.parametrize(
    "text", ["main", "step", "step-", "v1", "OLMoE-1B-7B", "step10x", "iter_", "a" * 40, "step-1-b"]
)
def test_what_names_no_step_is_not_guessed_at(text: str) -> None:
    assert read(text) is None


def test_steps_are_ordered_as_numbers_and_not_as_text() -> None:
    names = ["step120000-tokens503B", "step5000-tokens20B", "step1223842-tokens5100B", "step1220000-tokens5117B"]
    assert [label.step for label in ordered(names)] == [5000, 120000, 1220000, 1223842]


def test_a_later_stage_comes_later_although_its_steps_begin_anew() -> None:
    names = [
        "stage2-step100-tokens1B",
        "stage1-step90000-tokens400B",
        "stage10-step1-tokens1B",
        "stage1-step7-tokens0B",
    ]
    assert [label.text for label in ordered(names)] == [names[3], names[1], names[0], names[2]]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["step1000-tokens4B", "main"], "'main' names no step of a run; .* look like step1000-tokens4B"),
        (["iter_0000100", "checkpoint-500"], "'iter_0000100' and 'checkpoint-500' count in two ways"),
        (["step10", "step-00010"], "'step10' and 'step-00010' are the same step"),
        (
            ["stage1-step10-tokens1B", "step20-tokens2B"],
            "'step20-tokens2B' names no stage and 'stage1-step10-tokens1B'",
        ),
        (
            ["stage2-ingredient1-step5", "stage2-ingredient2-step9"],
            "trained beside each other, not one after the other",
        ),
    ],
)
def test_names_without_a_common_order_are_refused_in_a_sentence(names: list[str], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        ordered(names)


def test_repositories_that_differ_in_their_tokens_are_a_run() -> None:
    names = [f"owner/mini-base-{n}" for n in ("20T", "5T", "900B")]
    assert [label.tokens for label in ordered_repositories(names)] == [900 * BILLION, 5000 * BILLION, 20000 * BILLION]
    with pytest.raises(Refusal, match=r"owner/mini names no revision, .* write it as owner/mini@REVISION"):
        ordered_repositories(["owner/mini", "owner/mini-5T"])
    with pytest.raises(Refusal, match="are two models"):
        ordered_repositories(["owner/mini-5T", "owner/maxi-10T"])


def test_tokens_come_from_the_name_the_trainer_or_the_labs_settings_and_else_from_nowhere(tmp_path: Path) -> None:
    for name in ("step10-tokens3B", "checkpoint-500", "checkpoint-600", "step-00020"):
        (tmp_path / name).mkdir()
    assert tokens_at(tmp_path / "step10-tokens3B", 10) == 3 * BILLION
    (tmp_path / "checkpoint-500" / "trainer_state.json").write_text(json.dumps({"num_input_tokens_seen": 81920}))
    (tmp_path / "checkpoint-600" / "trainer_state.json").write_text(json.dumps({"num_input_tokens_seen": 0}))
    assert tokens_at(tmp_path / "checkpoint-500", 500) == 81920
    assert tokens_at(tmp_path / "checkpoint-600", 600) is None, "0 says that nobody counted"
    assert tokens_at(tmp_path / "step-00020", 20) is None
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"router": "kmeans", "sequences": 2}}))
    assert tokens_at(tmp_path / "step-00020", 20) == 20 * 4 * 2 * 128
    (tmp_path / "run.json").write_text("{half")
    assert tokens_at(tmp_path / "step-00020", 20) is None


def test_the_shipped_runs_say_how_many_tokens_a_step_has(root: Path) -> None:
    import numpy as np

    run = root / "data" / "checkpoints" / "aux"
    first = np.load(run / "first-batches.npy", allow_pickle=False)
    assert tokens_at(run / "step-00020", 20) == first.shape[0] * first.shape[1] * (first.shape[2] - 1)
