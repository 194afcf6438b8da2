"""How a task can end without a result."""

from __future__ import annotations


class TaskFailed(RuntimeError):
    """Raised where a task's messages are read: it failed, and the text is a sentence for the person who asked.

    `refusal` says that the question cannot be answered as it stands, rather than that the machine gave way.
    """

    def __init__(self, message: str, refusal: bool = False):
        super().__init__(message)
        self.refusal = refusal


class TaskCancelled(RuntimeError):
    """Raised where a task's messages are read: somebody cancelled it."""
