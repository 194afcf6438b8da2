"""The routers of another checkpoint in the place of this one's; the experts stay."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from analysis.slots import Shape
from backend.adapters.anatomy import MoeLayer, Unsupported
from backend.adapters.fused import SELECTION_BIASES
from backend.edits.changes import Changes, Place, Write
from backend.edits.edit import Edit, Subject
from backend.errors import Refusal


@dataclass(frozen=True)
class Routers(Edit):
    """Layer by layer, whole modules: rows, biases, rule. A random one shuffles the experts of the own routers."""

    kind: ClassVar[str] = "routers"
    source: ClassVar[str | None] = "checkpoint"
    checkpoint: str

    def changes(self, subject: Subject) -> Changes:
        """A module for each layer."""
        if subject.other is None:
            raise Refusal(f"{self.checkpoint} is not loaded: the routers to take are nowhere.")
        own, other = subject.anatomy, subject.other
        _check_shapes(own.shape, other.shape, self.checkpoint)
        pairs = list(zip(own.layers, other.layers, strict=True))
        for mine, theirs in pairs:
            _check_pair(mine, theirs, self.checkpoint)
        return Changes(places=tuple(Place(mine.block, _name(mine), theirs.router) for mine, theirs in pairs))

    def told(self) -> str:
        """In words."""
        return f"routers of {self.checkpoint}"

    def random(self, shape: Shape, drawn: random.Random) -> Edit | None:
        """Its own routers, whose rows name other experts."""
        order = list(range(shape.experts))
        drawn.shuffle(order)
        return _Shuffled(tuple(order))


@dataclass(frozen=True)
class _Shuffled(Edit):
    """The own routers; rows, and whatever else they keep by expert, in another order, the same in each layer."""

    kind: ClassVar[str] = "shuffled routers"
    order: tuple[int, ...]

    def changes(self, subject: Subject) -> Changes:
        experts, order = subject.anatomy.shape.experts, list(self.order)
        held = [
            t
            for layer in subject.anatomy.layers
            for t in (*layer.router.parameters(), *layer.router.buffers())
            if t.shape[:1] == (experts,)
        ]
        return Changes(writes=tuple(Write(t, t.detach()[torch.tensor(order, device=t.device)]) for t in held))

    def told(self) -> str:
        return f"own routers, experts in the order {' '.join(map(str, self.order))}"


def _check_shapes(own: Shape, other: Shape, name: str) -> None:
    seen = [(len(s.layers), s.experts, s.model) for s in (own, other)]
    if seen[0] != seen[1]:
        mine, theirs = (f"{n} MoE layers of {e} experts and width {d}" for n, e, d in seen)
        raise Refusal(f"Routers fit where layers, experts and width are equal: this model has {mine}, {name} {theirs}.")


def _check_pair(mine: MoeLayer, theirs: MoeLayer, name: str) -> None:
    if type(mine.block) is not type(theirs.block):
        kinds = f"{type(mine.block).__name__}, that of {name} is {type(theirs.block).__name__}"
        raise Unsupported(f"the block of {mine.name} is {kinds}: it reads something else out of its router")
    if any(
        isinstance(getattr(each.block, bias, None), torch.Tensor)
        for each in (mine, theirs)
        for bias in SELECTION_BIASES
    ):
        raise Unsupported(f"the selection bias of {mine.name} lies outside its router: it would stay behind")


def _name(layer: MoeLayer) -> str:
    found = next((name for name, child in layer.block.named_children() if child is layer.router), None)
    if found is None:
        raise Unsupported(f"the router of {layer.name} is no child of its block: it cannot be replaced")
    assert isinstance(layer.router, nn.Module)
    return found
