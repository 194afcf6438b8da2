"""One answer in a figure and the part it plays there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontend import theme
from frontend.answer import Answer

LETTERS = ("a", "b", "c", "d")
DASHES = {"control": "4px,3px", "context": "4px,3px", "c": "8px,4px", "d": "2px,3px"}
"""Two hues are all that stay apart for every eye: what comes beside A and B is ink, told by its stroke and its name."""


@dataclass(frozen=True)
class Side:
    """`role` is a to d (a is the baseline), ab, control (step 0 of the run) or context (another run, drawn in grey).

    A corrected p above `level` dims.
    """

    role: str
    label: str
    answer: Answer
    level: float | None = None

    @property
    def faded(self) -> np.ndarray | None:
        """What chance explains at the level, cell by cell, where there is a level and a p to hold to it."""
        null = self.answer.null
        if self.level is None or null is None or null.p is None:
            return None
        return np.broadcast_to(null.p, self.answer.values.shape) > self.level

    @property
    def colour(self) -> str:
        """Blue and orange for A and B; ink for C, D and what belongs to both; the null's grey for controls."""
        if self.role in ("a", "b"):
            return theme.LIGHT[self.role]
        return theme.LIGHT["ink" if self.role in ("ab", *LETTERS) else "null"]

    @property
    def dash(self) -> str:
        """How its line is drawn."""
        return DASHES.get(self.role, "solid")

    @property
    def title(self) -> str:
        """The name as it stands on the marks."""
        return f"<b>{self.role.upper()}</b> {self.label}" if self.role in LETTERS else self.label

    @property
    def ink(self) -> str:
        """The colour of the name; grey marks get a darker word, for contrast."""
        return self.colour if self.role in ("ab", *LETTERS) else theme.LIGHT["ink-3"]


def with_chance(sides: Sequence[Side]) -> Side:
    """Whose chance a figure of several draws: the first's that has one (a fully soft router may have none)."""
    compared = (side for side in sides if side.role in LETTERS)
    return next((side for side in compared if side.answer.null is not None), sides[0])
