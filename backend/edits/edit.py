"""What an edit is: a frozen spec that can be written as JSON and says what it changes in a model."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from analysis.slots import Shape
from backend.adapters.anatomy import Anatomy
from backend.edits.changes import Changes
from backend.errors import Refusal


@dataclass(frozen=True, eq=False)
class Subject:
    """The model an edit is for.

    `usage` counts selections [layer, expert] of the untouched model on the prompts; `other` is the checkpoint an edit
    takes something from.
    """

    model: Any
    anatomy: Anatomy
    usage: Tensor
    other: Anatomy | None = None


@dataclass(frozen=True)
class Saved:
    """What a smaller layout would save; the edited model keeps its size."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class Edit(ABC):
    """One change of a model. The fields of a subclass are its spec; a layer is named as its axis names it."""

    kind: ClassVar[str]
    source: ClassVar[str | None] = None
    """The field that names another checkpoint, if there is one."""
    no_random: ClassVar[str] = ""
    """Why there is no such edit of random experts."""

    @abstractmethod
    def changes(self, subject: Subject) -> Changes:
        """What it comes down to in this model.

        Raises:
            Refusal: If the model has no such layer, expert or k.
            Unsupported: If this model cannot be edited so.
        """

    @abstractmethod
    def told(self) -> str:
        """The edit in words."""

    def random(self, shape: Shape, drawn: random.Random) -> Edit | None:
        """The same kind of edit of random experts, or None where it names none."""
        return None

    def saved(self, subject: Subject) -> Saved | None:
        """What a layout made for it would save."""
        return None

    def to_json(self) -> dict[str, Any]:
        """The spec."""
        return {"kind": self.kind, **asdict(self)}


def layer_of(shape: Shape, label: str) -> int:
    """The index of the layer so labelled."""
    if label not in shape.layers:
        known = list(shape.layers)
        raise Refusal(f"There is no MoE layer {label!r}; the layers are {', '.join(known)}.", known=known)
    return shape.layers.index(label)


def check_expert(shape: Shape, expert: int) -> None:
    """Refuses an expert that is not there."""
    if not 0 <= expert < shape.experts:
        raise Refusal(f"There is no expert {expert}; a layer has experts 0 to {shape.experts - 1}.")


def size_of_expert(subject: Subject) -> Saved:
    """Parameters of one routed expert, its router row included."""
    experts, _, _ = subject.anatomy.layers[0].size()
    layer = subject.anatomy.layers[0]
    held = [p for m in (layer.experts, layer.router) for p in m.parameters() if p.shape[:1] == (experts,)]
    return Saved(
        sum(p.numel() // experts for p in held),
        sum(p.numel() // experts * p.element_size() for p in held),
    )
