"""The worker process: takes tasks from a pipe, runs them in turns, sends messages back. It never opens the catalogue.

Tasks are generators. Between two steps the worker looks at its inbox and goes on with whatever has the least left to
do, so a short question never waits for a long pass.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from analysis.errors import GeometryError
from backend.errors import Refusal
from backend.runners.failures import TaskFailed
from backend.runners.messages import (
    CaptureTask,
    Done,
    EditTask,
    Failed,
    Lane,
    Message,
    Progress,
    PruneTask,
    Ready,
    SentenceTask,
    Task,
)
from backend.settings import Paging

PR_SET_PDEATHSIG = 1
NICE = 5
Inbox = queue.Queue[Task | str | None]
"""Tasks to run, ids of tasks to drop, or None: stop."""
VERSIONED = ("moe-geometry", "torch", "transformers")


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker is started with. `idle_seconds` ends it when it has had nothing to do for that long."""

    lane: Lane
    store: Path
    device: str
    memory_budget: int
    threads: int
    idle_seconds: float | None = None
    paging: Paging = "auto"


@dataclass
class Running:
    """A task under way and what it has left."""

    steps: Generator[Message, None, None]
    left: int


def main(connection: Connection, options: WorkerOptions) -> None:
    """The process's whole life."""
    _die_with_parent()
    if options.lane != "quick":
        os.nice(NICE)  # on two busy cores the short questions go first
    inbox: Inbox = queue.Queue()
    threading.Thread(target=_read_inbox, args=(connection, inbox), daemon=True).start()
    Worker(connection, options).serve(inbox)


class Worker:
    """Runs tasks in turns."""

    def __init__(self, connection: Connection, options: WorkerOptions):
        import torch

        from backend.runners.evaluation import Merged
        from backend.runners.residents import Residents
        from backend.store.arrays import Arrays

        torch.set_num_threads(options.threads)
        importlib.import_module("backend.runners.preload")  # done already in a worker that was forked
        self._device = options.device
        self._arrays = Arrays(options.store)
        self._residents = Residents(self._device, options.memory_budget, options.paging)
        self._merged = Merged(self._arrays)
        self._connection = connection
        self._idle_seconds = options.idle_seconds
        self._running: dict[str, Running] = {}

    def serve(self, inbox: Inbox) -> None:
        """Until told to stop, or for a worker on demand until it has been idle for long enough."""
        self._send(Ready(self._device, {name: importlib.metadata.version(name) for name in VERSIONED}))
        while self._take(inbox):
            self._step(min(self._running, key=lambda task: self._running[task].left))

    def _take(self, inbox: Inbox) -> bool:
        """Read the inbox until there is something to run; False when there is nothing more to come."""
        while not self._running or not inbox.empty():
            try:
                item = inbox.get(timeout=self._idle_seconds)
            except queue.Empty:
                return False
            if item is None:
                return False
            if isinstance(item, str):
                dropped = self._running.pop(item, None)
                if dropped:
                    dropped.steps.close()
            else:
                self._running[item.id] = Running(self._begin(item), _size(item))
        return True

    def _begin(self, task: Task) -> Generator[Message, None, None]:
        from backend.runners import edits, evaluation, passes, prunes, sentences, traced

        if isinstance(task, CaptureTask) and task.checkpoint.trace:
            return traced.run(task, self._arrays)
        if isinstance(task, CaptureTask):
            return passes.run(task, self._residents, self._arrays)
        if isinstance(task, SentenceTask):
            return sentences.run(task, self._residents)
        if isinstance(task, EditTask):
            return edits.run(task, self._residents)
        if isinstance(task, PruneTask):
            return prunes.run(task, self._residents)
        return evaluation.run(task, self._residents, self._merged)

    def _step(self, task: str) -> None:
        running = self._running[task]
        try:
            message = next(running.steps)
        except StopIteration:
            self._end(Done(task))
        except (GeometryError, Refusal) as error:
            self._end(Failed(task, str(error), refusal=True))
        except TaskFailed as error:
            self._end(Failed(task, str(error)))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self._end(Failed(task, _unknown(error)))
        else:
            if isinstance(message, Progress):
                running.left = message.left
            self._send(message)

    def _end(self, message: Done | Failed) -> None:
        del self._running[message.task]
        self._send(message)

    def _send(self, message: Message) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def _unknown(error: Exception) -> str:
    # torch's own out-of-memory error is no MemoryError.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "The device has no memory left for this; ask a smaller checkpoint, or stop what else runs there."
    return f"The worker met an error it does not know ({type(error).__name__}: {error})."


def _size(task: Task) -> int:
    if isinstance(task, CaptureTask):
        prompts = [prompt for work in task.shards for prompt in work.prompts]
    elif isinstance(task, EditTask | PruneTask):
        prompts = list(task.prompts)
    else:
        return 0  # a question or a typed text goes before any pass
    return sum(len(prompt.text) // 4 for prompt in prompts)


def _read_inbox(connection: Connection, inbox: Inbox) -> None:
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def _die_with_parent() -> None:
    # Ctrl-C reaches the whole process group; the parent decides, and closing the pipe is how it says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
