"""An expert forced on: it takes the place of each token's last-ranked choice, with its own weight."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from analysis.slots import Shape
from backend.edits.changes import Changes
from backend.edits.edit import Edit, Subject, check_expert, layer_of
from backend.edits.rerouting import Rerouting
from backend.errors import Refusal


@dataclass(frozen=True)
class On(Edit):
    """Every token gets this expert; the model makes the weights, of the scores of those chosen now."""

    kind: ClassVar[str] = "on"
    layer: str
    expert: int

    def changes(self, subject: Subject) -> Changes:
        """One choice forced."""
        shape = subject.anatomy.shape
        at = layer_of(shape, self.layer)
        check_expert(shape, self.expert)
        if shape.soft:
            raise Refusal("Every token uses every expert (k = E): none can be forced on.")
        return Changes(reroutings=(Rerouting(subject.anatomy.layers[at], on=self.expert),))

    def told(self) -> str:
        """In words."""
        return f"expert {self.expert} of layer {self.layer} forced on"

    def random(self, shape: Shape, drawn: random.Random) -> Edit | None:
        """Another expert of the same layer."""
        return On(self.layer, drawn.choice([e for e in range(shape.experts) if e != self.expert]))
