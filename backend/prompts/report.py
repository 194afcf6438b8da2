"""What reading a file of prompts found, row by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from backend.prompts.sets import Prompt, PromptSet

State = Literal["good", "mended", "refused"]

PREVIEW_FIRST, PREVIEW_PROBLEMS, PREVIEW_CHARACTERS = 50, 200, 500
"""A preview shows the first rows and those with problems, long texts cut."""

MOST_PROBLEMS = 1_000
"""Problems told one by one; the rest are counted."""


@dataclass(frozen=True)
class Problem:
    """One thing about one row: mended on the way in, or the reason the row stays out."""

    row: int
    field: str
    severity: Literal["refused", "mended"]
    message: str


@dataclass
class Report:
    """A file's rows as they were understood. `prompts` are the good and the mended ones, in order."""

    name: str
    format: str
    prompts: list[Prompt] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    _preview: list[dict[str, Any]] = field(default_factory=list)
    _previewed_problems: int = 0

    def note(self, problem: Problem) -> None:
        """Remember a problem, up to a number."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.left_out += 1

    def count(self, row: int, state: State, shown: tuple[str, str, str]) -> None:
        """Count a row under its state, and keep it for the preview (id, text, category) where it belongs there."""
        seen = self.states.total()
        self.states[state] += 1
        wanted = state != "good" and self._previewed_problems < PREVIEW_PROBLEMS
        if seen < PREVIEW_FIRST or wanted:
            self._previewed_problems += state != "good"
            name, text, category = shown
            cut = text if len(text) <= PREVIEW_CHARACTERS else text[:PREVIEW_CHARACTERS] + "…"
            self._preview.append(
                {"row": row, "id": name[:100], "text": cut, "category": category[:100], "state": state}
            )

    def prompt_set(self, name: str | None = None) -> PromptSet:
        """The good and mended rows as a set."""
        return PromptSet(name or self.name, tuple(self.prompts), shipped=False)

    def to_json(self) -> dict[str, Any]:
        """What a client is told."""
        return {
            "name": self.name,
            "format": self.format,
            "rows": self.states.total(),
            "good": self.states["good"],
            "mended": self.states["mended"],
            "refused": self.states["refused"],
            "problems": [asdict(problem) for problem in self.problems],
            "problems_left_out": self.left_out,
            "preview": self._preview,
            "categories": dict(Counter(p.category for p in self.prompts)),
        }
