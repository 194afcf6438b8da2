"""The way to the store: over HTTP where a backend holds it, by opening it ourselves where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend.settings import Settings

Progress = Callable[[str, float, float | None], None]
"""Told a stage, a fraction from 0 to 1 and the seconds left, or None."""


@dataclass(frozen=True)
class Wanted:
    """A question in the words of the command line: ids or paths, nothing resolved."""

    measure: str
    checkpoints: Sequence[str]
    prompts: str | None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)


class Door(Protocol):
    """What the command line can do with a store, wherever it is."""

    def ask(self, wanted: Wanted, progress: Progress) -> dict[str, Any]:
        """The ANSWER object; raises a refusal."""
        ...

    def plan(self, wanted: Wanted) -> dict[str, Any]:
        """What asking it would take; raises a refusal where it cannot be paid."""
        ...

    def edit(
        self, checkpoint: str, prompts: str, spec: Mapping[str, Any], options: Mapping[str, Any], progress: Progress
    ) -> dict[str, Any]:
        """What an edit does; `options` are `randoms` and `chat_template`."""
        ...

    def prune(self, checkpoint: str, prompts: str, ratio: float, randoms: int, progress: Progress) -> dict[str, Any]:
        """What each criterion would drop at this ratio."""
        ...

    def checkpoints(self) -> list[dict[str, Any]]:
        """All checkpoints."""
        ...

    def inspect(self, source: str) -> dict[str, Any]:
        """What a folder or hub id holds, without keeping it."""
        ...

    def register(self, source: str) -> dict[str, Any]:
        """Keep a folder or hub id."""
        ...

    def import_trace(self, path: str, name: str, said: Mapping[str, Any], prompts: str | None) -> dict[str, Any]:
        """Keep the trace of a file under a name; `said` are the options that name what the file does not."""
        ...

    def register_run(self, sources: Sequence[str], name: str | None) -> dict[str, Any]:
        """Keep the steps of a run, in order."""
        ...

    def prompts(self) -> list[dict[str, Any]]:
        """All prompt sets, without texts."""
        ...

    def prompt_set(self, name: str) -> dict[str, Any]:
        """One set with its first rows."""
        ...

    def add_prompts(self, path: str) -> dict[str, Any]:
        """Keep the good rows of a file; the report says what was left out."""
        ...

    def delete_prompts(self, name: str) -> None:
        """Forget a set."""
        ...

    def sql(self, query: str) -> dict[str, Any]:
        """Columns and rows of one SELECT."""
        ...


@contextmanager
def open_door(settings: Settings) -> Iterator[Door]:
    """The backend's door if one serves this store, else our own; given back at the end."""
    from backend.store import serving

    served = serving(settings.store)
    if served:
        from backend.cli.remote import RemoteDoor

        with RemoteDoor(served) as door:
            yield door
    else:
        from backend.cli.local import LocalDoor

        with LocalDoor(settings) as door:
            yield door
