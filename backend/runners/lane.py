"""One worker process and the thread that keeps it: starts it, reads it, and says so when it dies."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from backend.runners.messages import Done, Failed, Message, Progress, Ready, Task
from backend.runners.worker import WorkerOptions, main

# Never forked: torch, DuckDB and threads do not survive it.
_CONTEXT = multiprocessing.get_context("spawn")
STOPPED = "The service stopped before this was done; ask again, and what is stored already is not run twice."


class Lane:
    """Tasks of one kind, in one worker. The worker starts with the first task, or at once if `eager`."""

    def __init__(self, options: WorkerOptions, eager: bool = False):
        self.ready: Ready | None = None
        self._options = options
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = False
        self._connection: Connection | None = None
        self._process: BaseProcess | None = None
        self._waiting: list[Task] = []
        self._listeners: dict[str, queue.Queue[Message | None]] = {}
        self._last: dict[str, str] = {}
        if eager:
            self._wanted.set()
        # The process is started by this thread alone: Linux sends the death signal when the *thread* that started a child ends.
        self._thread = threading.Thread(target=self._keep, name=f"{options.lane}-lane", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether it has tasks."""
        return bool(self._listeners)

    @property
    def restarting(self) -> bool:
        """Whether it should be up and is not."""
        return self._wanted.is_set() and self.ready is None

    @property
    def pid(self) -> int | None:
        """The worker's process id while it lives."""
        return self._process.pid if self._process and self._process.is_alive() else None

    def submit(self, task: Task) -> queue.Queue[Message | None]:
        """Give it a task; its messages come through the queue, `Done` or `Failed` last."""
        listener: queue.Queue[Message | None] = queue.Queue()
        with self._lock:
            self._listeners[task.id] = listener
            if not self._send(task):
                self._waiting.append(task)
            self._wanted.set()
        return listener

    def cancel(self, task: str) -> None:
        """Forget the task; a worker of slow tasks, which cannot stop half way, is ended."""
        with self._lock:
            if self._listeners.pop(task, None) is None:
                return
            self._last.pop(task, None)
            self._waiting = [t for t in self._waiting if t.id != task]
            self._send(task)
            if self._options.lane == "slow" and not self._listeners and self._process:
                self._process.kill()

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            self._closing = True
            self._wanted.set()
            if self._connection:
                self._connection.close()
            process = self._process
        if process and process.is_alive():
            process.join(2)
            process.kill()
        self._thread.join(5)

    def _send(self, item: Task | str) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.send(item)
        except (OSError, ValueError):
            return False
        return True

    def _keep(self) -> None:
        while True:
            self._wanted.wait()
            if self._closing:
                return self._fail_all(STOPPED)
            connection = self._start()
            self._read(connection)
            self._stopped(connection)

    def _start(self) -> Connection:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(
            target=main, args=(theirs, self._options), name=f"moe-geometry-{self._options.lane}", daemon=True
        )
        process.start()
        theirs.close()
        with self._lock:
            self._process = process
            self._connection = ours
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                self._send(task)
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
            return
        with self._lock:
            listener = self._listeners.get(message.task)
            if isinstance(message, Progress):
                self._last[message.task] = message.stage
            if isinstance(message, Done | Failed):
                self._listeners.pop(message.task, None)
                self._last.pop(message.task, None)
        if listener:
            listener.put(message)

    def _stopped(self, connection: Connection) -> None:
        process = self._process
        if process:
            process.join(5)
        with self._lock:
            self._connection = None
            self.ready = None
            connection.close()
            idle = process is not None and process.exitcode == 0
            if idle and not self._closing and not self._listeners:
                self._wanted.clear()
        if not idle and not self._closing:
            self._fail_all(None, _death(process))
            if self._options.lane == "slow":
                self._wanted.clear()

    def _fail_all(self, sentence: str | None, death: str = "") -> None:
        with self._lock:
            listeners, self._listeners = self._listeners, {}
            last, self._last = self._last, {}
            self._waiting = []
        for task, listener in listeners.items():
            at = f" at “{last[task]}”" if task in last else ""
            listener.put(
                Failed(
                    task,
                    sentence
                    or f"The worker {death}{at}. The service goes on; ask again, and finished shards are not run twice.",
                )
            )


def _death(process: BaseProcess | None) -> str:
    code = process.exitcode if process else None
    if code is None or code >= 0:
        return f"ended unexpectedly (exit code {code})"
    name = signal.Signals(-code).name
    return f"was killed ({name}; often the machine is out of memory)" if name == "SIGKILL" else f"died of {name}"
