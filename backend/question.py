"""A question: which measure, of which checkpoints, on which prompts, with which knobs; and its key."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from analysis.code import code_digest
from analysis.errors import NoExperts
from analysis.measure import STEPS, Measure, get
from analysis.slots import SLOTS
from analysis.statistic import statistics
from backend.adapters.own import own_adapters
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.errors import Refusal
from backend.prompts import PromptSet
from backend.traces.trace import OF_ROUTES

TRACING = ("backend.adapters", "backend.capture", "backend.paging")
"""Packages that turn a model into slots; their code is part of every key that needs a pass."""


@dataclass(frozen=True)
class Question:
    """A settled question. Make one with `ask`, which refuses what cannot be answered."""

    measure: Measure
    checkpoints: tuple[Checkpoint, ...]
    prompts: PromptSet | None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    capture: CaptureOptions = field(default_factory=CaptureOptions)
    start: Checkpoint | None = None
    """Step 0 of the checkpoint's run, where the null reads it."""

    @property
    def read(self) -> tuple[Checkpoint, ...]:
        """Every checkpoint that is read for the answer: those asked about, and the start."""
        return self.checkpoints if self.start is None else (*self.checkpoints, self.start)

    @cached_property
    def key(self) -> str:
        """SHA-256 of everything that changes the answer; the same on any day and any machine."""
        return digest(
            {
                "measure": self.measure.name,
                "code": [self.measure.code, tracing_code()],
                "checkpoints": [c.fingerprint for c in self.checkpoints],
                "prompts": self.prompts.digest if self.prompts else None,
                "knobs": dict(self.knobs),
                "capture": capture_key(self.capture) if self.prompts else None,
                **({"start": self.start.fingerprint} if self.start else {}),
                # The axis of an answer over checkpoints shows what they are called.
                **({"steps": self.labels} if self.measure.sides == STEPS else {}),
            }
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """What each checkpoint is called on an axis: its step where all are of one run, else its id."""
        steps = [str(c.step) for c in self.checkpoints if c.step is not None]
        one_run = len({c.run for c in self.checkpoints}) == 1 and len(set(steps)) == len(self.checkpoints)
        return tuple(steps) if one_run else tuple(c.id for c in self.checkpoints)


def ask(
    measure: str,
    checkpoints: Sequence[Checkpoint],
    prompts: PromptSet | None,
    knobs: Mapping[str, Any] | None = None,
    capture: CaptureOptions | None = None,
    start_of: Callable[[Checkpoint], Checkpoint | None] = lambda checkpoint: None,
) -> Question:
    """The question behind these words, with every knob settled.

    Args:
        measure: A registered name.
        checkpoints: One for an ordinary measure; two, in the order a, b, for a comparison; two or more, in the order
            of training, for a measure of steps.
        prompts: The prompt set; left out of account where the measure reads weights only.
        knobs: What differs from the defaults.
        capture: How the prompts are run; left out of account where nothing is run.
        start_of: Finds step 0 of a checkpoint's run, for a null that reads it; None where there is none.

    Raises:
        UnknownName: The measure or a knob is not registered.
        BadKnob: A knob's value is outside its choices.
        NoExperts: A checkpoint is dense.
        Refusal: The number of checkpoints is wrong, or the measure needs prompts and has none.
    """
    asked = get(measure)
    settled = asked.settle(knobs or {})
    _check_sides(asked, checkpoints)
    for checkpoint in checkpoints:
        if checkpoint.dense:
            raise NoExperts(
                f"{checkpoint.id} is a dense model: it has no routed experts, and {asked.name} is about experts. "
                "Ask it of a Mixture-of-Experts checkpoint."
            )
    _check_traces(asked, checkpoints)
    start = start_of(checkpoints[0]) if asked.reads_start(settled) else None
    if not asked.statistics:
        return Question(asked, tuple(checkpoints), None, settled, start=start)
    if prompts is None or not prompts.prompts:
        raise Refusal(f"{asked.name} is measured on prompts, and none were named; name a prompt set.")
    _check_texts(checkpoints, prompts, capture or CaptureOptions())
    return Question(asked, tuple(checkpoints), prompts, settled, capture or CaptureOptions(), start)


def capture_key(options: CaptureOptions) -> dict[str, Any]:
    """The capture options that change numbers; how many tokens share a batch does not."""
    names = ("generate", "chat_template", "max_tokens", "first_token")
    return {name: getattr(options, name) for name in names}


def digest(parts: Any) -> str:
    """SHA-256 of canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@cache
def tracing_code() -> str:
    """Digest of what turns a model into slots: adapters, a user's own among them, and capture."""
    modules = [importlib.import_module(name) for package in TRACING for name in _names(package)]
    modules += own_adapters()
    return digest([[module.__name__, code_digest(module)] for module in modules])


def _names(package: str) -> list[str]:
    path = importlib.import_module(package).__path__
    return [package, *sorted(found.name for found in pkgutil.walk_packages(path, f"{package}."))]


def _check_sides(measure: Measure, checkpoints: Sequence[Checkpoint]) -> None:
    seen = ", ".join(c.id for c in checkpoints) or "none"
    if measure.sides == STEPS:
        _check_steps(measure, checkpoints, seen)
        return
    if len(checkpoints) != max(len(measure.sides), 1):
        sides = f"two checkpoints, {' and '.join(measure.sides)}" if measure.sides else "one checkpoint"
        raise Refusal(f"{measure.name} takes {sides}; it was given {len(checkpoints)}: {seen}.")


def _check_steps(measure: Measure, checkpoints: Sequence[Checkpoint], seen: str) -> None:
    if len(checkpoints) < 2:
        raise Refusal(
            f"{measure.name} follows two or more checkpoints in the order of training; it was given "
            f"{len(checkpoints)}: {seen}."
        )
    if len({c.id for c in checkpoints}) < len(checkpoints):
        raise Refusal(f"{measure.name} follows checkpoints in order, and one is named twice: {seen}.")
    places = [c.place for c in checkpoints]
    known = all(c.step is not None or c.tokens is not None for c in checkpoints)
    if len({c.run for c in checkpoints}) == 1 and known and places != sorted(places):
        raise Refusal(f"{measure.name} follows checkpoints in the order of training; these are not: {seen}.")


def _check_traces(measure: Measure, checkpoints: Sequence[Checkpoint]) -> None:
    """A trace answers what its statistics decide; the rest is refused with what it would take."""
    for checkpoint in checkpoints:
        optional = {name for name, slot in SLOTS.items() if slot.optional}
        lacking = [name for name in measure.reads if name not in optional and not checkpoint.gives(name)]
        if lacking:
            first = next((name for name in lacking if name in SLOTS), lacking[0])
            raise Refusal(
                f"{measure.name} needs {_needed(first)} ({first}); {checkpoint.id} is an imported trace "
                f"({checkpoint.trace}), which decides {', '.join(checkpoint.statistics)} alone."
            )


def _needed(name: str) -> str:
    if name in SLOTS:
        return "the model's weights"
    if name in OF_ROUTES:
        return "each token's choices"
    return "the text of each token" if statistics()[name].needs == {"routes"} else "the model, run on the prompts"


def _check_texts(checkpoints: Sequence[Checkpoint], prompts: PromptSet, capture: CaptureOptions) -> None:
    """Prompts without texts stand for those of one import: equal ids of another say nothing."""
    for checkpoint in checkpoints:
        if prompts.textless and checkpoint.prompts != prompts.name:
            runs = "was imported with other prompts" if checkpoint.trace else "cannot be run on them"
            raise Refusal(
                f"{prompts.name} holds ids of an imported trace's prompts and no texts, and {checkpoint.id} {runs}. "
                "Name a set with texts, or import the other trace with --prompts as well."
            )
    changed = capture.generate or capture.chat_template or not capture.first_token
    if changed and all(c.trace for c in checkpoints):
        raise Refusal(
            f"{checkpoints[0].id} is an imported trace: its tokens are those of the file, so none are generated or "
            "left out and no chat template is applied; leave these options out."
        )
