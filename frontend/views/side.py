"""One answer in a figure and the part it plays there."""

from __future__ import annotations

from dataclasses import dataclass

from frontend import theme
from frontend.answer import Answer


@dataclass(frozen=True)
class Side:
    """`role` is a, b, control (step 0 of the run) or context (another run, drawn in grey)."""

    role: str
    label: str
    answer: Answer

    @property
    def colour(self) -> str:
        """Blue and orange for A and B; ink for what belongs to both; the null's grey for controls."""
        return {"a": theme.LIGHT["a"], "b": theme.LIGHT["b"], "ab": theme.LIGHT["ink"]}.get(
            self.role, theme.LIGHT["null"]
        )

    @property
    def title(self) -> str:
        """The name as it stands on the marks."""
        return {"a": f"<b>A</b> {self.label}", "b": f"<b>B</b> {self.label}"}.get(self.role, self.label)

    @property
    def ink(self) -> str:
        """The colour of the name; grey marks get a darker word, for contrast."""
        return self.colour if self.role in ("a", "b", "ab") else theme.LIGHT["ink-3"]
