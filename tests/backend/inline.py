"""A runner in this very process: what a worker does with a task, without starting one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from analysis.errors import GeometryError
from backend.errors import Refusal
from backend.runners import evaluation, passes, traced
from backend.runners.failures import TaskFailed
from backend.runners.messages import CaptureTask, Message, Task
from backend.runners.residents import Residents
from backend.settings import Paging
from backend.store.arrays import Arrays


class InlineRunner:
    """Implements `Runner`; `log` holds the tasks in their order."""

    device, status = "cpu", "idle"

    def __init__(self, store: Path, paging: Paging = "auto") -> None:
        self.log: list[Task] = []
        self._arrays = Arrays(store)
        self._residents = Residents("cpu", 1 << 30, paging)
        self._merged = evaluation.Merged(self._arrays)

    def run(self, task: Task) -> Iterator[Message]:
        self.log.append(task)
        try:
            if isinstance(task, CaptureTask) and task.checkpoint.trace:
                yield from traced.run(task, self._arrays)
            elif isinstance(task, CaptureTask):
                yield from passes.run(task, self._residents, self._arrays)
            else:
                yield from evaluation.run(task, self._residents, self._merged)
        except (GeometryError, Refusal) as error:
            raise TaskFailed(str(error), refusal=True) from error

    def cancel(self, task: str) -> None:
        raise AssertionError(task)

    def close(self) -> None:
        self._residents = Residents("cpu", 0)


class InlinePool(Executor):
    """Does what it is given at once, here."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done
