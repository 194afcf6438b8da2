"""Where model work runs. The backend knows this protocol and nothing of processes or clusters.

A runner takes a task and hands back messages. It never sees the catalogue: a task carries what it needs, and what comes
back is files and frozen messages that the caller keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from backend.runners.messages import Message, Task


class Runner(Protocol):
    """Runs tasks elsewhere and reports on them."""

    @property
    def device(self) -> str:
        """The device models run on, as torch spells it."""
        ...

    @property
    def status(self) -> str:
        """`idle`, `busy` or `restarting`."""
        ...

    def run(self, task: Task) -> Iterator[Message]:
        """The messages of this task until it is done; raises `TaskFailed` or `TaskCancelled`."""
        ...

    def cancel(self, task: str) -> None:
        """Stops the task between two batches; its caller gets `TaskCancelled` at once."""
        ...

    def close(self) -> None:
        """Ends everything it started."""
        ...
