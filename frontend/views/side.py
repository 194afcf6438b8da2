"""One answer in a figure and the part it plays there."""

from __future__ import annotations

from dataclasses import dataclass

from frontend import theme
from frontend.answer import Answer

LETTERS = ("a", "b", "c", "d")
DASHES = {"control": "4px,3px", "context": "4px,3px", "c": "8px,4px", "d": "2px,3px"}
"""Two hues are all that stay apart for every eye: what comes beside A and B is ink, told by its stroke and its name."""


@dataclass(frozen=True)
class Side:
    """`role` is a to d (a is the baseline), ab, control (step 0 of the run) or context (another run, drawn in grey)."""

    role: str
    label: str
    answer: Answer

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
