"""One worker process and the thread that keeps it: starts it, reads it, and says so when it dies."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from backend.runners.messages import Done, Failed, Message, Progress, Ready, Task
from backend.runners.worker import WorkerOptions, main

# Never forked from here: DuckDB and threads do not survive it. On Linux a process that has imported what workers run,
# and does nothing else, is forked instead: a worker is up at once, and all of them share that memory.
_SPAWN = multiprocessing.get_context("spawn")
_FORKSERVER = multiprocessing.get_context("forkserver") if sys.platform == "linux" else _SPAWN
_FORKSERVER.set_forkserver_preload(["backend.runners.preload"])

STOPPED = "The service stopped before this was done; ask again, and what is stored already is not run twice."
STOP_SECONDS = 5.0
LONGEST_PAUSE = 30.0
"""Seconds before another start of a worker that keeps dying before it is up."""

Inbox = queue.Queue[Message | None]


@dataclass
class _Given:
    """A task that the worker has, or will have once it is up."""

    task: Task
    inbox: Inbox
    stage: str = ""


class Lane:
    """Tasks of one kind, in one worker. The worker starts with the first task, or at once if `eager`."""

    def __init__(self, options: WorkerOptions, eager: bool = False):
        self.ready: Ready | None = None
        self._options = options
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._process: BaseProcess | None = None
        self._given: dict[str, _Given] = {}
        self._false_starts = 0
        self._ended = False
        if eager:
            self._wanted.set()
        # This thread alone starts the process: Linux sends the death signal when the *thread* that started it ends.
        self._thread = threading.Thread(target=self._keep, name=f"{options.lane}-lane", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether it has tasks."""
        return bool(self._given)

    @property
    def restarting(self) -> bool:
        """Whether it should be up and is not."""
        return self._wanted.is_set() and self.ready is None

    @property
    def pid(self) -> int | None:
        """The worker's process id while it lives."""
        return self._process.pid if self._process and self._process.is_alive() else None

    def submit(self, task: Task) -> Inbox:
        """Give it a task; its messages come through the queue, `Done` or `Failed` last."""
        given = _Given(task, queue.Queue())
        with self._lock:
            if self._closing.is_set():
                given.inbox.put(Failed(task.id, STOPPED))
                return given.inbox
            self._given[task.id] = given
            self._send(task)
            self._wanted.set()
        return given.inbox

    def cancel(self, task: str) -> None:
        """Forget the task; a worker of slow tasks, which cannot stop half way, is ended."""
        with self._lock:
            if self._given.pop(task, None) is None:
                return
            self._send(task)
            if self._options.lane == "slow" and not self._given and self._process:
                self._ended = True
                self._process.kill()

    def stop(self) -> None:
        """Ask the worker to end; returns at once."""
        with self._lock:
            if not self._closing.is_set():
                self._closing.set()
                self._wanted.set()
                self._send(None)

    def close(self) -> None:
        """End the worker; whoever still waits is told."""
        self.stop()
        process = self._process
        if process and process.is_alive():
            process.join(STOP_SECONDS)
            process.kill()
        self._thread.join(5)
        self._fail_all(STOPPED)

    def _send(self, item: Task | str | None) -> None:
        """Under the lock. A worker that is not up gets its tasks later; one that just died is noticed by its reader."""
        if self._connection is not None:
            try:
                self._connection.send(item)
            except (OSError, ValueError):
                return

    def _keep(self) -> None:
        while True:
            self._wanted.wait()
            if self._closing.is_set():
                return
            connection = self._start()
            self._read(connection)
            self._stopped(connection)

    def _start(self) -> Connection:
        context = _FORKSERVER if self._options.device == "cpu" else _SPAWN  # CUDA may be touched by an import
        ours, theirs = context.Pipe()
        name = f"moe-geometry-{self._options.lane}"
        process = context.Process(target=main, args=(theirs, self._options), name=name, daemon=True)
        process.start()
        theirs.close()
        with self._lock:
            self._process, self._connection, self._ended = process, ours, False
            for given in self._given.values():
                self._send(given.task)
            if self._closing.is_set():
                process.kill()
        return ours

    def _read(self, connection: Connection) -> None:
        try:
            while True:
                self._route(connection.recv())
        except (EOFError, OSError):
            return

    def _route(self, message: Message) -> None:
        if isinstance(message, Ready):
            self.ready = message
            self._false_starts = 0
            return
        with self._lock:
            given = self._given.get(message.task)
            if given and isinstance(message, Progress):
                given.stage = message.stage
            if isinstance(message, Done | Failed):
                self._given.pop(message.task, None)
        if given:
            given.inbox.put(message)

    def _stopped(self, connection: Connection) -> None:
        process = self._process
        if process:
            process.join(5)
        code = process.exitcode if process else None
        with self._lock:
            self._connection = None
            came_up, self.ready = self.ready is not None, None
            ended, self._ended = self._ended, False
            connection.close()
            # A worker on demand leaves when idle, or is ended; a task that crossed that is given to the next one.
            if not self._given and (code == 0 or self._options.lane == "slow") and not self._closing.is_set():
                self._wanted.clear()
        if code != 0 and not ended and not self._closing.is_set():
            self._fail_all(f"The worker {_death(code)}")
        if not came_up and not ended:
            self._false_starts += 1
            self._closing.wait(min(2.0**self._false_starts, LONGEST_PAUSE))

    def _fail_all(self, sentence: str) -> None:
        with self._lock:
            given, self._given = self._given, {}
        for each in given.values():
            at = f" (at “{each.stage}”)" if each.stage else ""
            again = (
                "" if sentence == STOPPED else f"{at}. Ask again: the service goes on, and finished shards are kept."
            )
            each.inbox.put(Failed(each.task.id, sentence + again))


def _death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended unexpectedly (exit code {code})"
    name = signal.Signals(-code).name
    return "was killed (SIGKILL; often the machine is out of memory)" if name == "SIGKILL" else f"died of {name}"
