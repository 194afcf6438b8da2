"""Two experts merged: both slots hold the mean of their weights, by usage, after their neurons were matched."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from analysis.expert import Expert
from analysis.merging import merged
from analysis.slots import Shape
from backend.adapters.anatomy import MoeLayer, Unsupported
from backend.edits.changes import Changes, Write
from backend.edits.edit import Edit, Saved, Subject, check_expert, layer_of, size_of_expert
from backend.errors import Refusal

PARTS = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


@dataclass(frozen=True)
class Merge(Edit):
    """Routing is left alone: each slot is chosen as before, with its own weight. Never used: equal shares."""

    kind: ClassVar[str] = "merge"
    layer: str
    first: int
    second: int

    def changes(self, subject: Subject) -> Changes:
        """The merged weights for both slots."""
        shape = subject.anatomy.shape
        at = layer_of(shape, self.layer)
        for expert in (self.first, self.second):
            check_expert(shape, expert)
        if self.first == self.second:
            raise Refusal(f"Expert {self.first} was named twice; a merge takes two.")
        layer = subject.anatomy.layers[at]
        pair = [layer.expert(expert) for expert in (self.first, self.second)]
        _check_views(layer, pair[0])
        used, other = (float(subject.usage[at, expert]) for expert in (self.first, self.second))
        made = merged(pair[0], pair[1], other / (used + other) if used + other else 0.5)
        writes = [
            Write(tensor, getattr(made, part))
            for expert in pair
            for part in PARTS
            if isinstance(tensor := getattr(expert, part), Tensor)
        ]
        return Changes(writes=tuple(writes))

    def told(self) -> str:
        """In words."""
        return f"experts {self.first} and {self.second} of layer {self.layer} merged"

    def random(self, shape: Shape, drawn: random.Random) -> Edit | None:
        """Another pair of the same layer."""
        pairs = [(a, b) for a in range(shape.experts) for b in range(a + 1, shape.experts)]
        own = tuple(sorted((self.first, self.second)))
        others = [pair for pair in pairs if pair != own]
        return Merge(self.layer, *drawn.choice(others)) if others else None

    def saved(self, subject: Subject) -> Saved | None:
        """One expert, and its router row with it."""
        return size_of_expert(subject)


def _check_views(layer: MoeLayer, expert: Expert) -> None:
    held = {p.untyped_storage().data_ptr() for p in layer.experts.parameters()}
    parts = [getattr(expert, part) for part in PARTS]
    if any(t is not None and t.untyped_storage().data_ptr() not in held for t in parts):
        raise Unsupported(f"the experts of {layer.name} are read as copies here: new weights would not reach the model")
