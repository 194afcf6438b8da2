"""From a question to its answer: the only path that computes; the API's jobs and the command line both take it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.result import Result
from analysis.slots import SLOTS
from backend import planner, prices
from backend.checkpoints import Checkpoint
from backend.prices import Machine
from backend.provenance import provenance
from backend.question import Question, capture_key, digest
from backend.runners import Runner
from backend.runners.device import accelerators
from backend.runners.failures import TaskCancelled, TaskFailed
from backend.runners.messages import (
    CaptureTask,
    EvaluateTask,
    Lane,
    Loaded,
    Message,
    Progress,
    ResultReady,
    ShardReady,
    SideFiles,
    Task,
)
from backend.settings import Paging
from backend.store import Store
from backend.store.arrays import Artifact

MOST_NOTES = 3
Bring = Callable[[Checkpoint, Callable[[str, float], None]], Checkpoint]
"""Makes sure that a checkpoint's weights are on this machine, telling a stage and a fraction."""


@dataclass(frozen=True)
class Answer:
    """A result and where it came from."""

    result: Result
    provenance: Mapping[str, Any]


@dataclass
class Ticket:
    """Whoever waits for an answer: told of progress, able to cancel."""

    progress: Callable[[Progress], None] = lambda progress: None
    task: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raises `TaskCancelled` once cancelled."""
        if self.cancelled.is_set():
            raise TaskCancelled("cancelled")


class Answering:
    """Answers questions from the store, or through the runner into the store."""

    def __init__(self, store: Store, runner: Runner, memory_budget: int, bring: Bring, paging: Paging = "auto"):
        self._store = store
        self._runner = runner
        self._machine = Machine(runner.device, memory_budget, accelerators(runner.device), paging)
        self._bring = bring
        self._passes = _Passes()

    def stored(self, question: Question) -> Answer | None:
        """The answer if it was given before; nothing is loaded."""
        told = self._store.get_answer(question.key)
        return Answer(told.result, told.provenance) if told else None

    def plan(self, question: Question) -> planner.Plan:
        """What it would take; raises `TooLarge` where the machine cannot pay it."""
        return self._fitted(question)[1]

    def told(self, question: Question) -> dict[str, Any]:
        """The plan as clients see it; raises `TooLarge`."""
        question, plan = self._fitted(question)
        running = [(side.checkpoint, planner.tokens(side, question.capture)) for side in plan.sides if side.missing]
        time = prices.seconds(running, self._machine.device, self._store)
        dtypes = (c.precision for c in plan.loaded)
        return prices.told(plan.price, self._machine, time, dtypes, question.capture.batch_tokens)

    def answer(self, question: Question, ticket: Ticket | None = None) -> Answer:
        """The answer, computed if it has to be.

        Raises:
            TooLarge: It does not fit the memory budget.
            Unavailable: Weights are still on the hub, and it could not be reached.
            TaskFailed: The runner said why not.
            TaskCancelled: The ticket was cancelled.
        """
        found = self.stored(question)
        if found:
            return found
        ticket = ticket or Ticket()
        start = time.monotonic()
        question, plan = self._fitted(question)
        question = self._brought(question, plan, ticket)
        if plan.price.passes:
            for number in range(len(question.read)):
                self._capture(question, number, ticket)
        result, arrays = self._evaluate(question, ticket)
        about = provenance(question, result.tokens, self._runner.device, time.monotonic() - start)
        answer = Answer(result, about)
        self._store.put_answer(question.key, answer, arrays)
        return answer

    def cancel(self, ticket: Ticket) -> None:
        """Make the `answer` that holds this ticket raise `TaskCancelled`."""
        ticket.cancelled.set()
        if ticket.task:
            self._runner.cancel(ticket.task)

    def _fitted(self, question: Question) -> tuple[Question, planner.Plan]:
        question, plan = planner.fitted(question, self._store, self._machine)
        planner.check(question, plan, self._machine)
        return question, plan

    def _brought(self, question: Question, plan: planner.Plan, ticket: Ticket) -> Question:
        """The same question, with the weights it reads on this machine: a checkpoint of the hub brings them now."""
        wanted = {c.id for c in plan.loaded if not c.fetched}

        def tell(stage: str, fraction: float) -> None:
            ticket.check()
            ticket.progress(Progress("fetching", stage, fraction, None))

        def here(checkpoint: Checkpoint) -> Checkpoint:
            return self._bring(checkpoint, tell) if checkpoint.id in wanted else checkpoint

        found, start = tuple(map(here, question.checkpoints)), question.start and here(question.start)
        return replace(question, checkpoints=found, start=start) if wanted else question

    def _capture(self, question: Question, number: int, ticket: Ticket) -> None:
        checkpoint = question.read[number]
        if not planner.side(question, checkpoint, self._store).missing:
            return
        prompts = question.prompts.digest if question.prompts else None
        parts = len(question.read)

        def told(progress: Progress) -> None:
            ticket.progress(replace(progress, fraction=(number + progress.fraction) / parts))

        key = digest([checkpoint.fingerprint, capture_key(question.capture), prompts])
        with self._passes.alone(key, told, ticket.check) as tell:
            # Planned again: while this waited, another question may have run the very same pass.
            missing = planner.side(question, checkpoint, self._store).missing
            if missing:
                self._pass(CaptureTask(uuid.uuid4().hex, checkpoint, question.capture, missing), ticket, tell)

    def _pass(self, task: CaptureTask, ticket: Ticket, tell: Callable[[Progress], None]) -> None:
        start = time.monotonic()
        for message in self._run(task, ticket, tell):
            if isinstance(message, ShardReady):
                self._keep(message, task.checkpoint, time.monotonic() - start)
            if isinstance(message, ShardReady | Loaded):
                start = time.monotonic()

    def _keep(self, shard: ShardReady, checkpoint: Checkpoint, seconds: float) -> None:
        about = {
            "checkpoint": checkpoint.id,
            "fingerprint": checkpoint.fingerprint,
            "prompts": [[p.id, p.digest] for p in shard.work.prompts],
            "tokens": shard.tokens,
            "seconds": round(seconds, 4),
            "device": self._runner.device,
            "active": prices.active_parameters(checkpoint),
            "notes": shard.notes,
        }
        routes = (shard.work.routes, shard.routes) if shard.work.routes and shard.routes else None
        self._store.put_shard(about, shard.states, routes)

    def _evaluate(self, question: Question, ticket: Ticket) -> tuple[Result, Mapping[str, Artifact]]:
        plan = planner.plan(question, self._store)
        prompts = question.prompts.prompts if question.prompts else ()
        labels = {(p.id, p.digest): p.category for p in prompts}
        names = (*question.labels, "step 0") if question.start else question.labels
        called = zip(plan.sides, names, strict=True)
        sides = [SideFiles(side.stored, labels, side.checkpoint, label) for side, label in called]
        start = sides.pop() if question.start else None
        what = (question.measure.name, dict(question.knobs), tuple(sides), _lane(question), start)
        task = EvaluateTask(uuid.uuid4().hex, *what)
        ready = None
        # To the end: leaving at the result would drop a task whose end is on its way, and with it its slow worker.
        for message in self._run(task, ticket, ticket.progress):
            ready = message if isinstance(message, ResultReady) else ready
        if ready is None:
            raise TaskFailed(f"{question.measure.name} ended without a result.")
        notes = self._store.notes([key for side in plan.sides for key in side.keys])
        tokens = ready.result.tokens or max((self._tokens(question, side) for side in plan.sides), default=0)
        caveats = (*_untrained(plan.sides), *ready.result.caveats, *_few(notes))
        return replace(ready.result, tokens=tokens, caveats=caveats), ready.arrays

    def _tokens(self, question: Question, side: planner.Side) -> int:
        """Tokens behind one side, for measures whose statistics keep no count of them; the keys go shard by shard."""
        statistics = len(question.measure.statistics)
        return self._store.tokens(list(side.keys[::statistics])) if statistics else 0

    def _run(self, task: Task, ticket: Ticket, told: Callable[[Progress], None]) -> Iterator[Message]:
        ticket.task = task.id
        for message in self._runner.run(task):
            ticket.check()
            if isinstance(message, Progress):
                told(message)
            yield message


class _Passes:
    """One pass at a time over the same checkpoint and prompts; who waits sees the progress of who runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[str, Progress | None] = {}

    @contextmanager
    def alone(
        self, key: str, told: Callable[[Progress], None], check: Callable[[], None]
    ) -> Iterator[Callable[[Progress], None]]:
        """Wait for our turn, told of the progress of whoever has it; yields where to tell our own."""
        self._enter(key, told, check)

        def tell(progress: Progress) -> None:
            with self._changed:
                self._running[key] = progress
            told(progress)

        try:
            yield tell
        finally:
            with self._changed:
                del self._running[key]
                self._changed.notify_all()

    def _enter(self, key: str, told: Callable[[Progress], None], check: Callable[[], None]) -> None:
        while True:
            with self._changed:
                if key not in self._running:
                    self._running[key] = None
                    return
                self._changed.wait(0.2)
                seen = self._running.get(key)
            check()
            if seen:
                told(seen)


def _untrained(sides: Sequence[planner.Side]) -> tuple[str, ...]:
    names = dict.fromkeys(side.checkpoint.id for side in sides if side.checkpoint.random_weights)
    return (f"{', '.join(names)}: random weights, never trained",) if names else ()


def _few(notes: list[str]) -> list[str]:
    """What a pass left out, as caveats; a long list is cut and says so."""
    more = len(notes) - MOST_NOTES
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"{more} more notes of this kind are kept with the states"]


def _lane(question: Question) -> Lane:
    if question.measure.is_slow(question.knobs):
        return "slow"
    return "model" if any(name in SLOTS for name in question.measure.reads) else "quick"
