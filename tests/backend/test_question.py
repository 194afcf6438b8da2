"""A question's key, and what is refused before it becomes a job."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from analysis.errors import BadKnob, NoExperts, UnknownName
from analysis.measure import get
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.errors import Refusal
from backend.measures import describe
from backend.prompts import Prompt, PromptSet
from backend.question import ask

CHECKPOINT = Checkpoint("free/step-00020", "x", "/x", moe_layers=2, experts=4, top_k=2, model=8, fingerprint="f1")
OTHER = replace(CHECKPOINT, id="aux/step-00020", fingerprint="f2")
DENSE = replace(CHECKPOINT, id="dense/step-00020", dense=True, experts=0, moe_layers=0, fingerprint="f3")
WORDS = PromptSet("words", tuple(Prompt(f"p{n}", f"text {n}", "story") for n in range(20)), shipped=False)


def test_the_same_question_has_the_same_key_whatever_it_is_called() -> None:
    named = replace(WORDS, name="other name")
    renamed = replace(CHECKPOINT, id="copy", source="elsewhere")
    assert ask("expert_load", [CHECKPOINT], WORDS).key == ask("expert_load", [renamed], named).key


def test_a_default_knob_said_aloud_is_the_same_question() -> None:
    told = ask("expert_load", [CHECKPOINT], WORDS, {"count": "selected"})
    assert told.key == ask("expert_load", [CHECKPOINT], WORDS).key


def test_everything_that_changes_the_answer_changes_the_key() -> None:
    relabelled = PromptSet("words", tuple(replace(p, category="code") for p in WORDS.prompts), shipped=False)
    reworded = PromptSet("words", (Prompt("p0", "other text", "story"), *WORDS.prompts[1:]), shipped=False)
    questions = [
        ask("expert_load", [CHECKPOINT], WORDS),
        ask("load_violation", [CHECKPOINT], WORDS),
        ask("expert_load", [OTHER], WORDS),
        ask("expert_load", [CHECKPOINT], relabelled),
        ask("expert_load", [CHECKPOINT], reworded),
        ask("expert_load", [CHECKPOINT], WORDS, {"count": "served"}),
        ask("expert_load", [CHECKPOINT], WORDS, capture=CaptureOptions(generate=4)),
        ask("expert_load", [CHECKPOINT], WORDS, capture=CaptureOptions(chat_template=True)),
        ask("expert_load", [CHECKPOINT], WORDS, capture=CaptureOptions(first_token=False)),
        ask("load_difference", [CHECKPOINT, OTHER], WORDS),
        ask("load_difference", [OTHER, CHECKPOINT], WORDS),
    ]
    assert len({question.key for question in questions}) == len(questions)


def test_how_many_tokens_share_a_batch_is_no_part_of_the_key() -> None:
    small = ask("expert_load", [CHECKPOINT], WORDS, capture=CaptureOptions(batch_tokens=64))
    assert small.key == ask("expert_load", [CHECKPOINT], WORDS).key


def test_a_measure_of_weights_is_the_same_question_with_and_without_prompts() -> None:
    assert ask("router_cosine", [CHECKPOINT], WORDS).key == ask("router_cosine", [CHECKPOINT], None).key


def test_a_dense_model_is_refused_by_name() -> None:
    with pytest.raises(NoExperts, match="dense/step-00020 is a dense model: it has no routed experts, and expert_load"):
        ask("expert_load", [DENSE], WORDS)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="expert_load"):
        ask("expert_lod", [CHECKPOINT], WORDS)
    with pytest.raises(UnknownName, match="count"):
        ask("expert_load", [CHECKPOINT], WORDS, {"counts": "served"})
    with pytest.raises(BadKnob, match="served"):
        ask("expert_load", [CHECKPOINT], WORDS, {"count": "dropped"})


@pytest.mark.parametrize(
    ("measure", "knob", "value"),
    [
        ("grassmann_distance", "n", 0),
        ("gradient_interference", "coefficient", -1),
        ("expert_contribution", "silent", math.nan),
        ("signature_embedding", "seed", 2**70),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range_before_there_is_a_question(
    measure: str, knob: str, value: Any
) -> None:
    with pytest.raises(BadKnob, match=rf"knob '{knob}' is {value!r}; it takes a.* number, \d to [\d,]+$"):
        ask(measure, [CHECKPOINT], WORDS, {knob: value})


def test_the_catalogue_tells_the_range_of_each_number() -> None:
    told = {knob["name"]: knob["range"] for knob in describe(get("signature_classifier"))["knobs"]}
    assert told["seed"] == "0 to 4,294,967,295" and told["folds"].startswith("2 to ")
    assert told["penalty"].startswith("above 0 and below ") and told["weighting"] is None


def test_the_number_of_checkpoints_is_the_measures() -> None:
    with pytest.raises(Refusal, match="load_difference takes two checkpoints, a and b; it was given 1"):
        ask("load_difference", [CHECKPOINT], WORDS)
    with pytest.raises(Refusal, match="expert_load takes one checkpoint; it was given 2"):
        ask("expert_load", [CHECKPOINT, OTHER], WORDS)


def test_a_measure_of_prompts_wants_prompts() -> None:
    with pytest.raises(Refusal, match="name a prompt set"):
        ask("expert_load", [CHECKPOINT], None)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> str:
    """A measure of steps, whichever measures there are."""
    made = replace(get("load_difference"), name="followed", sides=("steps",))
    monkeypatch.setattr("backend.question.get", lambda name: made if name == "followed" else get(name))
    return "followed"


def steps(*numbers: int, run: str = "free") -> list[Checkpoint]:
    return [replace(CHECKPOINT, id=f"{run}/{n}", run=run, step=n, fingerprint=f"{run}{n}") for n in numbers]


def test_a_measure_of_steps_takes_two_or_more_checkpoints_in_order(followed: str) -> None:
    assert ask(followed, steps(0, 20, 80), WORDS).labels == ("0", "20", "80")
    assert ask(followed, [*steps(20), *steps(0, run="aux")], WORDS).labels == ("free/20", "aux/0")
    with pytest.raises(
        Refusal, match="followed follows two or more checkpoints in the order of training; it was given 1"
    ):
        ask(followed, steps(20), WORDS)
    with pytest.raises(Refusal, match="one is named twice: free/20, free/20"):
        ask(followed, steps(20, 20), WORDS)
    with pytest.raises(Refusal, match="these are not: free/80, free/20"):
        ask(followed, steps(80, 20), WORDS)


def test_an_answer_that_shows_names_of_checkpoints_is_kept_under_them(followed: str) -> None:
    named = ask(followed, steps(0, 20), WORDS).key
    renamed = [replace(c, step=n) for c, n in zip(steps(0, 20), (1, 21), strict=True)]
    assert ask(followed, renamed, WORDS).key != named == ask(followed, steps(0, 20), WORDS).key
