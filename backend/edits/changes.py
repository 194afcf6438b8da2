"""What an edit comes down to, and the one place where a model is changed: everything is put back bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.edits.rerouting import Rerouting, rerouted


@dataclass(frozen=True, eq=False)
class Write:
    """New numbers for a tensor of the model (or a view of one)."""

    tensor: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Place:
    """Another value for an attribute of a module or config: a number, or a module in another's place."""

    owner: Any
    name: str
    value: Any


@dataclass(frozen=True, eq=False)
class Changes:
    """All that one edit does; with none of them the model is untouched."""

    writes: tuple[Write, ...] = ()
    places: tuple[Place, ...] = ()
    reroutings: tuple[Rerouting, ...] = ()


@contextmanager
def applied(changes: Changes) -> Iterator[None]:
    """The model as edited, for as long as this lasts; nobody else may use it meanwhile."""
    with ExitStack() as stack:
        for place in changes.places:
            stack.callback(setattr, place.owner, place.name, getattr(place.owner, place.name))
            setattr(place.owner, place.name, place.value)
        for write in changes.writes:
            stack.enter_context(_written(write))
        for rerouting in changes.reroutings:
            stack.enter_context(rerouted(rerouting))
        yield


@contextmanager
def _written(write: Write) -> Iterator[None]:
    before = write.tensor.detach().clone()
    try:
        with torch.no_grad():
            write.tensor.copy_(write.value)
        yield
    finally:
        with torch.no_grad():
            write.tensor.copy_(before)
