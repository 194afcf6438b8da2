"""What goes into a worker and what comes out of it: frozen, picklable, complete.

A `CaptureTask` is expensive (it loads a model and runs it); an `EvaluateTask` is cheap (it merges stored states and
calls a measure).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from analysis.result import Result
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.prompts import Prompt
from backend.sentence import Sentence
from backend.store.arrays import Artifact

Lane = Literal["model", "quick", "slow"]


@dataclass(frozen=True)
class ShardWork:
    """Some consecutive prompts, the states to make of them (statistic -> key), and the key of their routing chunk."""

    prompts: tuple[Prompt, ...]
    statistics: Mapping[str, str]
    routes: str | None


@dataclass(frozen=True)
class CaptureTask:
    """Run these shards through this checkpoint and write what the statistics make of them."""

    id: str
    checkpoint: Checkpoint
    capture: CaptureOptions
    shards: tuple[ShardWork, ...]
    lane: Lane = "model"


@dataclass(frozen=True)
class SideFiles:
    """One side of a measure: stored states in prompt order, labels of its prompts, and where its weights are.

    `label` is what the checkpoint is called on an axis.
    """

    states: Mapping[str, tuple[Artifact, ...]]
    categories: Mapping[tuple[str, str], str]
    checkpoint: Checkpoint
    label: str = ""


@dataclass(frozen=True)
class EvaluateTask:
    """Merge the states, load the weights the measure reads, and evaluate it; `start` is step 0 of the run, if asked."""

    id: str
    measure: str
    knobs: Mapping[str, Any]
    sides: tuple[SideFiles, ...]
    lane: Lane = "quick"
    start: SideFiles | None = None


@dataclass(frozen=True)
class SentenceTask:
    """Run one text that somebody typed, at once: it goes before whatever has more left."""

    id: str
    checkpoint: Checkpoint
    text: str
    capture: CaptureOptions
    lane: Lane = "model"


@dataclass(frozen=True)
class EditTask:
    """Run the prompts through a model, through the same model edited, and through as many random edits of that kind.

    `edit` is its spec; `other` the checkpoint that it takes something from.
    """

    id: str
    checkpoint: Checkpoint
    edit: Mapping[str, Any]
    prompts: tuple[Prompt, ...]
    capture: CaptureOptions
    randoms: int
    other: Checkpoint | None = None
    lane: Lane = "model"


@dataclass(frozen=True)
class PruneTask:
    """Run the prompts through a model, and through what is left of it under each criterion's keep-list.

    `ratio` is the share of each layer's experts that goes.
    """

    id: str
    checkpoint: Checkpoint
    ratio: float
    prompts: tuple[Prompt, ...]
    capture: CaptureOptions
    randoms: int
    lane: Lane = "model"


Task = CaptureTask | EvaluateTask | SentenceTask | EditTask | PruneTask


@dataclass(frozen=True)
class Ready:
    """A worker is up: on this device, with these versions."""

    device: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Progress:
    """How far a task is. `left` is tokens still to run, what the worker schedules by; `ran` those it ran so far."""

    task: str
    stage: str
    fraction: float
    eta_seconds: float | None
    left: int = 0
    ran: int = 0


@dataclass(frozen=True)
class Loaded:
    """A model was read from disk for this task."""

    task: str
    checkpoint: str


@dataclass(frozen=True)
class ShardReady:
    """A shard's files lie whole on disk: states (key -> statistic and file), and its routing under `work.routes`."""

    task: str
    work: ShardWork
    states: Mapping[str, tuple[str, Artifact]]
    routes: Artifact | None
    tokens: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResultReady:
    """The measure's answer; its arrays lie on disk already, by name."""

    task: str
    result: Result
    arrays: Mapping[str, Artifact] = field(default_factory=dict)


@dataclass(frozen=True)
class SentenceReady:
    """What the model did with a text."""

    task: str
    sentence: Sentence


@dataclass(frozen=True)
class TriedReady:
    """What an edit, or each keep-list, did, as plain values."""

    task: str
    told: Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """The task ended well."""

    task: str


@dataclass(frozen=True)
class Failed:
    """The task ended badly; the message is a sentence for the person who asked."""

    task: str
    message: str
    refusal: bool = False


Message = Ready | Progress | Loaded | ShardReady | ResultReady | SentenceReady | TriedReady | Done | Failed
