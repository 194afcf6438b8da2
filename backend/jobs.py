"""Questions that take a while: one job per question, its states, its events, and what is left of it after a restart."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from analysis.errors import GeometryError
from backend.answer import Answering, Ticket
from backend.errors import NotFound, Refusal, Unavailable
from backend.question import Question
from backend.runners.failures import TaskCancelled, TaskFailed
from backend.runners.messages import Progress
from backend.store import Store

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]
ENDED = ("done", "failed", "cancelled")
STOPPED = "The service stopped before this was done; ask again, and what is stored already is not run twice."
MOST_LIVE = 256
STOP_SECONDS = 5.0
PACE_SECONDS = 0.1
"""A stream sends no more often than this; only the latest progress matters."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A job as it stands at one moment; `version` counts its changes.

    `tokens` is how many a model ran for it, 0 where all was stored; None for a job from before this was counted.
    """

    id: str
    key: str
    measure: str
    checkpoints: tuple[str, ...]
    prompts: str | None
    state: JobState
    stage: str
    fraction: float
    created: str
    eta_seconds: float | None = None
    message: str | None = None
    refused: bool = False
    started: str | None = None
    finished: str | None = None
    version: int = 1
    tokens: int | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """As clients see it."""
        return {**self.__dict__, "checkpoints": list(self.checkpoints)}


@dataclass
class _Live:
    job: Job
    ticket: Ticket
    thread: threading.Thread | None = None
    watchers: list[Callable[[], None]] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)  # by task


class Jobs:
    """The jobs of this service."""

    def __init__(self, answering: Answering, store: Store):
        self._answering = answering
        self._store = store
        self._lock = threading.RLock()
        self._live: dict[str, _Live] = {}
        self._closed = False
        for about in store.jobs():
            if about["state"] not in ENDED:
                store.save_job(
                    {**about, "state": "failed", "message": STOPPED, "finished": _now(), "eta_seconds": None}
                )

    def ask(self, question: Question) -> Job:
        """The job of this question: the one under way if there is one, else a new one."""
        key = question.key
        with self._lock:
            if self._closed:
                raise Unavailable("The service is stopping.")
            for live in self._live.values():
                if live.job.key == key and not live.job.ended:
                    return live.job
            if len(self._live) >= MOST_LIVE:
                raise Unavailable(f"{MOST_LIVE} questions are waiting already; try again when some are done.")
            live = self._begin(question, key)
            live.thread = threading.Thread(target=self._run, args=(question, live), name="job", daemon=True)
            live.thread.start()
        return live.job

    def get(self, job: str) -> Job:
        """The job as it stands; raises `NotFound`."""
        with self._lock:
            if job in self._live:
                return self._live[job].job
        about = self._store.job(job)
        if about is None:
            raise NotFound(f"There is no job {job!r}.")
        return _from_json(about)

    def list(self) -> list[Job]:
        """Newest first."""
        with self._lock:
            live = {job: entry.job for job, entry in self._live.items()}
        return [live.get(about["id"]) or _from_json(about) for about in self._store.jobs()]

    def cancel(self, job: str) -> Job:
        """Cancel it if it is not over; returns it as it then stands."""
        with self._lock:
            live = self._live.get(job)
            if live is None:
                return self.get(job)
            self._change(live, state="cancelled", message="Cancelled.", finished=_now(), eta_seconds=None)
        self._answering.cancel(live.ticket)
        return live.job

    async def follow(self, job: str, seen: int = 0, pace: float = PACE_SECONDS) -> AsyncGenerator[Job, None]:
        """The job now, unless its version was `seen` already, and then after every change until it has ended."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._lock:
            live = self._live.get(job)
            if live:
                live.watchers.append(wake)
        try:
            while True:
                now = await asyncio.to_thread(self.get, job)
                if now.version != seen or now.ended:
                    seen = now.version
                    yield now
                if now.ended:
                    return
                await asyncio.sleep(pace)
                await changed.wait()
                changed.clear()
        finally:
            if live:
                with self._lock:
                    live.watchers.remove(wake)

    def close(self) -> None:
        """Stop what runs and say so in the store."""
        with self._lock:
            self._closed = True
            entries = list(self._live.values())
            for live in entries:
                self._change(live, state="failed", message=STOPPED, finished=_now(), eta_seconds=None)
        for live in entries:
            self._answering.cancel(live.ticket)
        for live in entries:
            if live.thread:
                live.thread.join(STOP_SECONDS)

    def _begin(self, question: Question, key: str) -> _Live:
        job = Job(
            id=uuid.uuid4().hex[:12],
            key=key,
            measure=question.measure.name,
            checkpoints=tuple(c.id for c in question.checkpoints),
            prompts=question.prompts.name if question.prompts else None,
            state="waiting",
            stage="waiting",
            fraction=0.0,
            created=_now(),
            tokens=0,
        )
        live = _Live(job, Ticket())
        live.ticket.progress = lambda progress: self._progress(live, progress)
        self._live[job.id] = live
        self._store.save_job(job.to_json())
        return live

    def _run(self, question: Question, live: _Live) -> None:
        try:
            self._answering.answer(question, live.ticket)
        except TaskCancelled:
            end: dict[str, Any] = {"state": "cancelled", "message": "Cancelled."}
        except TaskFailed as error:
            end = {"state": "failed", "message": str(error), "refused": error.refusal}
        except (GeometryError, Refusal) as error:
            end = {"state": "failed", "message": str(error), "refused": True}
        except Exception as error:
            log.exception("job %s", live.job.id)
            end = {
                "state": "failed",
                "message": f"The service met an error it does not know ({type(error).__name__}: {error}).",
            }
        else:
            end = {"state": "done", "stage": "done", "fraction": 1.0}
        with self._lock:
            self._change(live, **end, finished=_now(), eta_seconds=None)
            del self._live[live.job.id]

    def _progress(self, live: _Live, progress: Progress) -> None:
        with self._lock:
            began = {} if live.job.state == "running" else {"state": "running", "started": _now()}
            live.ran[progress.task] = max(progress.ran, live.ran.get(progress.task, 0))
            now = {"stage": progress.stage, "fraction": progress.fraction, "eta_seconds": progress.eta_seconds}
            self._change(live, **began, **now, tokens=sum(live.ran.values()))

    def _change(self, live: _Live, **changes: Any) -> None:
        """Under the lock. What has ended stays as it is, and what is the same already is no change."""
        job = replace(live.job, **changes)
        if live.job.ended or job == live.job:
            return
        live.job = replace(job, version=job.version + 1)
        if job.ended:  # a running one is in memory; what a restart finds unfinished has failed, whatever its stage
            self._store.save_job(live.job.to_json())
        for wake in live.watchers:
            wake()


def _from_json(about: dict[str, Any]) -> Job:
    return Job(**{**about, "checkpoints": tuple(about["checkpoints"])})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
