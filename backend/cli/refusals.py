"""Which errors are sentences for the person at the terminal, and which are bugs that keep their trace."""

from __future__ import annotations

from analysis.errors import GeometryError
from backend.errors import Refusal
from backend.runners.failures import TaskCancelled, TaskFailed


def sentence(error: Exception) -> str | None:
    """One line, or None for a bug."""
    if isinstance(error, GeometryError | Refusal | TaskFailed | TaskCancelled):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror or error}"
    return None
