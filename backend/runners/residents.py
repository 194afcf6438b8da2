"""Models that stay in memory between tasks: least recently used out first, within a budget."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from backend.adapters import adapt
from backend.checkpoints import Checkpoint, load, load_tokenizer


@dataclass(frozen=True)
class Resident:
    """A loaded model with what is needed to run it. Foreign types stay `Any`."""

    model: Any
    anatomy: Any
    tokenizer: Any
    bytes: int


class Residents:
    """The models of one worker."""

    def __init__(self, device: str, budget: int):
        self._device = device
        self._budget = budget
        self._models: OrderedDict[str, Resident] = OrderedDict()

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether asking for it reads nothing from disk."""
        return _key(checkpoint) in self._models

    def get(self, checkpoint: Checkpoint) -> Resident:
        """The model, loaded if need be; others leave first where the budget asks for it."""
        found = self._models.get(_key(checkpoint))
        if found is None:
            self._make_room(checkpoint.memory_bytes)
            _silence()
            model = load(checkpoint, self._device)
            size = sum(p.numel() * p.element_size() for p in model.parameters())
            found = Resident(model, adapt(model), load_tokenizer(checkpoint), size)
            self._models[_key(checkpoint)] = found
        self._models.move_to_end(_key(checkpoint))
        return found

    def _make_room(self, size: int) -> None:
        while self._models and sum(m.bytes for m in self._models.values()) + size > self._budget:
            self._models.popitem(last=False)


def _key(checkpoint: Checkpoint) -> str:
    return checkpoint.fingerprint or checkpoint.folder


def _silence() -> None:
    """No progress bars of transformers' own: a worker reports through messages, and its stderr is the service's log."""
    from transformers.utils import logging

    logging.disable_progress_bar()
