"""An edit in the words of a client, run to its end: the one path of the API and of the command line."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.edits import edit_from
from backend.errors import Refusal, TooLarge
from backend.prompts import PromptSet
from backend.runners import Runner
from backend.runners.failures import TaskFailed

if TYPE_CHECKING:
    from backend.answer import Bring
    from backend.runners.messages import EditTask, Progress, PruneTask

MOST_RANDOM = 20


@dataclass(frozen=True)
class Means:
    """What an edit is run with: `find` tells names, `bring` fetches weights, `budget` is the bytes models may take."""

    find: Callable[[str], Checkpoint]
    bring: Bring
    runner: Runner
    budget: int


@dataclass(frozen=True)
class Asked:
    """What somebody wants to try; nothing is resolved yet."""

    checkpoint: str
    edit: Mapping[str, Any]
    randoms: int = 5
    chat_template: bool = False


def tried(asked: Asked, prompts: PromptSet, means: Means, told: Callable[[Progress], None]) -> dict[str, Any]:
    """Perplexity by category, routing and tokens, against the untouched model and random edits; nothing is kept.

    Weights that are still on the hub are fetched first, with progress.

    Raises:
        Refusal: If the edit is none, or not for this model; raised by the worker as `TaskFailed` of a refusal.
        TooLarge: If the checkpoints do not fit the memory budget.
        Unavailable: If weights are still on the hub, and it could not be reached.
    """
    from backend.runners.messages import EditTask

    checkpoint = means.find(asked.checkpoint)
    edit = edit_from(asked.edit)
    other = means.find(getattr(edit, edit.source)) if edit.source else None
    _check(checkpoint, other, asked.randoms, means.budget)
    name = uuid.uuid4().hex
    checkpoint = _brought(name, checkpoint, means, told)
    other = _brought(name, other, means, told) if other else None
    options = CaptureOptions(chat_template=asked.chat_template)
    task = EditTask(name, checkpoint, edit.to_json(), tuple(prompts.prompts), options, asked.randoms, other)
    return _run(task, prompts, means.runner, told)


def pruned(
    checkpoint: str, ratio: float, randoms: int, prompts: PromptSet, means: Means, told: Callable[[Progress], None]
) -> dict[str, Any]:
    """What each criterion would drop at this ratio, how far they agree, and what each keep-list costs; kept nowhere.

    Raises:
        Refusal: As `tried`.
        TooLarge: As `tried`.
        Unavailable: As `tried`.
    """
    from backend.runners.messages import PruneTask

    found, name = means.find(checkpoint), uuid.uuid4().hex
    _check(found, None, randoms, means.budget)
    found = _brought(name, found, means, told)
    return _run(
        PruneTask(name, found, ratio, tuple(prompts.prompts), CaptureOptions(), randoms), prompts, means.runner, told
    )


def _brought(task: str, checkpoint: Checkpoint, means: Means, told: Callable[[Progress], None]) -> Checkpoint:
    from backend.runners.messages import Progress

    return means.bring(checkpoint, lambda stage, fraction: told(Progress(task, stage, fraction, None)))


def _check(checkpoint: Checkpoint, other: Checkpoint | None, randoms: int, budget: int) -> None:
    if checkpoint.dense:
        raise Refusal(f"{checkpoint.id} is a dense model: it has no experts to switch, merge, drop or route to.")
    if not 0 <= randoms <= MOST_RANDOM:
        raise Refusal(f"{randoms} random edits were asked for; 0 to {MOST_RANDOM} are run.")
    held = sum(c.memory_bytes for c in (checkpoint, other) if c)
    if held > budget:
        raise TooLarge(
            f"{checkpoint.id}{f' and {other.id}' if other else ''} need about {held / 1e9:.1f} GB; the budget is "
            f"{budget / 1e9:.1f} GB. Raise MOE_GEOMETRY_MEMORY (bytes) if the machine has more."
        )


def _run(
    task: EditTask | PruneTask, prompts: PromptSet, runner: Runner, told: Callable[[Progress], None]
) -> dict[str, Any]:
    from backend.runners.messages import Progress, TriedReady

    began, ready = time.perf_counter(), None
    for message in runner.run(task):
        if isinstance(message, Progress):
            told(message)
        ready = message if isinstance(message, TriedReady) else ready
    if ready is None:
        raise TaskFailed(f"The edit of {task.checkpoint.id} ended without a result.")
    about = {
        "checkpoint": task.checkpoint.id,
        "fingerprint": task.checkpoint.fingerprint,
        "random_weights": task.checkpoint.random_weights,
        "prompt_set": prompts.name,
        "prompts_digest": prompts.digest,
        "device": runner.device,
        "seconds": round(time.perf_counter() - began, 3),
    }
    return {**about, **ready.told}
