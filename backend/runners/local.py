"""The runner on this machine: one worker per lane, models resident in the model lane.

The quick lane measures from stored states alone, so an answer that needs no pass never waits for one that does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from backend.runners.device import resolve_device
from backend.runners.failures import TaskCancelled, TaskFailed
from backend.runners.lane import Inbox, Lane
from backend.runners.messages import Done, Failed, Message, Task
from backend.runners.messages import Lane as LaneName
from backend.runners.worker import WorkerOptions
from backend.settings import Paging

IDLE_SECONDS = 300.0
REMEMBERED = 1000


class LocalRunner:
    """Model-resident workers that die with this process."""

    def __init__(
        self,
        store: Path,
        device: str = "auto",
        memory_budget: int = 4 << 30,
        eager: bool = False,
        paging: Paging = "auto",
    ):
        self.log: deque[Task | Message] = deque(maxlen=REMEMBERED)
        self._device = resolve_device(device)
        cores = os.cpu_count() or 1
        self._lanes: dict[LaneName, Lane] = {}
        for name in ("model", "quick", "slow"):
            options = WorkerOptions(
                lane=name,
                store=store.absolute(),
                device=self._device if name == "model" else "cpu",
                memory_budget=memory_budget,
                # The lanes share the cores: on two, a pass and a quick answer run side by side.
                threads=max(cores - 1, 1) if name == "model" else 1,
                idle_seconds=IDLE_SECONDS if name == "slow" else None,
                paging=paging,
            )
            self._lanes[name] = Lane(options, eager=eager and name != "slow")
        self._where: dict[str, tuple[LaneName, Inbox]] = {}
        self._lock = threading.Lock()

    @property
    def device(self) -> str:
        """Where models run."""
        return self._device

    @property
    def status(self) -> str:
        """`restarting` while a worker that should be up is not, `busy` with tasks, else `idle`."""
        lanes = self._lanes.values()
        if any(lane.restarting for lane in lanes):
            return "restarting"
        return "busy" if any(lane.busy for lane in lanes) else "idle"

    def worker(self, lane: LaneName) -> int | None:
        """Process id of a lane's worker while it lives."""
        return self._lanes[lane].pid

    def run(self, task: Task) -> Iterator[Message]:
        """The task's messages as they come."""
        self.log.append(task)
        queue = self._lanes[task.lane].submit(task)
        with self._lock:
            self._where[task.id] = (task.lane, queue)
        try:
            while True:
                message = queue.get()
                if message is None:
                    raise TaskCancelled("cancelled")
                self.log.append(message)
                if isinstance(message, Failed):
                    raise TaskFailed(message.message, message.refusal)
                if isinstance(message, Done):
                    return
                yield message
        finally:
            # Reached early too, when the caller stops reading: the worker has to drop the task then.
            with self._lock:
                del self._where[task.id]
            self._lanes[task.lane].cancel(task.id)

    def cancel(self, task: str) -> None:
        """Stop a task; its `run` raises `TaskCancelled` at once, the worker drops it after the batch it is in."""
        with self._lock:
            found = self._where.get(task)
        if found:
            found[1].put(None)

    def close(self) -> None:
        """End all workers."""
        for lane in self._lanes.values():
            lane.stop()
        for lane in self._lanes.values():
            lane.close()
