"""Another k: how many experts each token gets, in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from backend.adapters import TOP_K_KEYS
from backend.edits.changes import Changes, Place
from backend.edits.edit import Edit, Subject
from backend.errors import Refusal


@dataclass(frozen=True)
class TopK(Edit):
    """The same router, asked for more or fewer; its own normalisation makes the weights."""

    kind: ClassVar[str] = "topk"
    no_random: ClassVar[str] = "a change of k names no expert, so there is none to draw"
    k: int

    def changes(self, subject: Subject) -> Changes:
        """Where modules and config hold k."""
        shape = subject.anatomy.shape
        if shape.soft:
            raise Refusal("Every token uses every expert (k = E) by this router's own rule: there is no k to change.")
        if not 1 <= self.k <= shape.experts:
            raise Refusal(f"k = {self.k}; a token gets 1 to {shape.experts} experts.")
        config = subject.model.config.get_text_config()
        modules = dict.fromkeys(m for layer in subject.anatomy.layers for m in (layer.router, layer.block))
        held: list[tuple[Any, str]] = [(module, name) for module in modules for name in _names(module, shape.top_k)]
        held += [(config, name) for name in TOP_K_KEYS if getattr(config, name, None) == shape.top_k]
        return Changes(places=tuple(Place(owner, name, self.k) for owner, name in held))

    def told(self) -> str:
        """In words."""
        return f"k = {self.k}"


def _names(owner: Any, k: int) -> list[str]:
    known = ("top_k", *TOP_K_KEYS)
    return [name for name, value in vars(owner).items() if name in known and value == k]
