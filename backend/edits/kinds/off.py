"""An expert switched off: its logit is -inf before the model's own top-k and normalisation."""

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
class Off(Edit):
    """No token gets this expert; where the router ranks groups first, its selection bias still counts for its group."""

    kind: ClassVar[str] = "off"
    layer: str
    expert: int

    def changes(self, subject: Subject) -> Changes:
        """A mask of one."""
        shape = subject.anatomy.shape
        at = layer_of(shape, self.layer)
        check_expert(shape, self.expert)
        if not shape.soft and shape.experts - 1 < shape.top_k:
            raise Refusal(f"Without an expert {shape.experts - 1} are left, and each token gets {shape.top_k}.")
        return Changes(reroutings=(Rerouting(subject.anatomy.layers[at], off=(self.expert,)),))

    def told(self) -> str:
        """In words."""
        return f"expert {self.expert} of layer {self.layer} off"

    def random(self, shape: Shape, drawn: random.Random) -> Edit | None:
        """Another expert of the same layer."""
        return Off(self.layer, drawn.choice([e for e in range(shape.experts) if e != self.expert]))
