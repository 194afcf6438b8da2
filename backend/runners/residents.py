"""Models that stay in memory between tasks: least recently used out first, within a budget.

One that does not fit is paged: of it, what is outside of its decoder layers stays.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from backend.adapters import adapt
from backend.checkpoints import Checkpoint, load, load_tokenizer
from backend.errors import Refusal
from backend.paging.anatomy import paged
from backend.paging.choice import IN_MEMORY, ROOM, pages, places, weights_bytes
from backend.paging.opening import open_paged
from backend.runners.device import accelerators
from backend.settings import Paging


@dataclass(frozen=True)
class Resident:
    """A loaded model with what is needed to run it. Foreign types stay `Any`."""

    model: Any
    anatomy: Any
    tokenizer: Any
    bytes: int


@dataclass(frozen=True)
class SpreadResident(Resident):
    """A model whose layers lie on several devices, each computing where it lies."""


@dataclass(frozen=True)
class PagedResident(Resident):
    """A model whose layers are on disk; `room` is what prompts that wait before one may take in memory."""

    room: int


class Residents:
    """The models of one worker."""

    def __init__(self, device: str, budget: int, paging: Paging = "auto"):
        self._device = device
        self._budget = budget
        self._paging: Paging = paging
        self._accelerators = accelerators(device)
        self._models: OrderedDict[str, Resident] = OrderedDict()

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether asking for it reads nothing from disk."""
        return _key(checkpoint) in self._models

    def get(self, checkpoint: Checkpoint) -> Resident:
        """The model, loaded if need be; others leave first where the budget asks for it."""
        found = self._models.get(_key(checkpoint))
        if found is None:
            _silence()
            found = (
                self._paged(checkpoint) if pages(checkpoint, self._paging, self._budget) else self._whole(checkpoint)
            )
            self._models[_key(checkpoint)] = found
        self._models.move_to_end(_key(checkpoint))
        return found

    def _whole(self, checkpoint: Checkpoint) -> Resident:
        self._make_room(checkpoint.memory_bytes)
        where = places(checkpoint, self._paging, self._budget, self._device, self._accelerators)
        model, kind = load(checkpoint, self._device, where), Resident if where is None else SpreadResident
        return kind(model, adapt(model), load_tokenizer(checkpoint), _size(model))

    def _paged(self, checkpoint: Checkpoint) -> PagedResident:
        self._make_room(weights_bytes(checkpoint, self._paging, self._budget))
        pager = open_paged(checkpoint, self._device)
        size = _size(pager.model) + IN_MEMORY * pager.layer_bytes()
        return PagedResident(pager.model, paged(pager), load_tokenizer(checkpoint), size, room=self._budget // ROOM)

    def _make_room(self, size: int) -> None:
        while self._models and sum(m.bytes for m in self._models.values()) + size > self._budget:
            self._models.popitem(last=False)
            gc.collect()  # a spread model's hooks hold on to it in circles


def whole(found: Resident, name: str, what: str) -> Resident:
    """The model, for work that needs all its layers at once; raises `Refusal` for one that is paged."""
    if isinstance(found, PagedResident):
        raise Refusal(
            f"{name} is run one layer at a time, since it does not fit in memory or MOE_GEOMETRY_PAGING is always; "
            f"{what} would read all of it anew for each batch. Raise MOE_GEOMETRY_MEMORY where the machine has more, "
            "or ask a smaller checkpoint."
        )
    return found


def together(found: Resident, name: str, what: str) -> Resident:
    """The model, for work that needs all its layers on one device; raises `Refusal` for one that is not there."""
    if isinstance(found, SpreadResident):
        raise Refusal(
            f"{name} is spread over several devices, since one does not take it, and {what} is made for one device. "
            "Name a smaller precision (@bf16), another MOE_GEOMETRY_DEVICE, or a smaller checkpoint."
        )
    return whole(found, name, what)


def _size(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if not p.is_meta)


def _key(checkpoint: Checkpoint) -> str:
    return checkpoint.fingerprint or checkpoint.folder


def _silence() -> None:
    """No progress bars of transformers' own: a worker reports through messages, and its stderr is the service's log."""
    from transformers.utils import logging

    logging.disable_progress_bar()
