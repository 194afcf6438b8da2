"""Experts dropped by a keep-list: in flight their logits are -inf; exported, their tensors are gone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from analysis.pruning import Keep
from analysis.slots import Shape
from backend.edits.changes import Changes
from backend.edits.edit import Edit, Saved, Subject, check_expert, size_of_expert
from backend.edits.rerouting import Rerouting
from backend.errors import Refusal


@dataclass(frozen=True)
class Prune(Edit):
    """`keep` has a list of experts for each MoE layer, first layer first."""

    kind: ClassVar[str] = "prune"
    keep: Keep

    def changes(self, subject: Subject) -> Changes:
        """A mask for each layer that loses an expert."""
        shape, layers = subject.anatomy.shape, subject.anatomy.layers
        if len(self.keep) != len(layers):
            raise Refusal(f"The keep-list has {len(self.keep)} layers; this model has {len(layers)} MoE layers.")
        for label, kept in zip(shape.layers, self.keep, strict=True):
            for expert in kept:
                check_expert(shape, expert)
            if len(set(kept)) < (1 if shape.soft else shape.top_k):
                raise Refusal(f"Layer {label} would keep {len(set(kept))} experts; a token gets {shape.top_k}.")
        dropped = [tuple(e for e in range(shape.experts) if e not in kept) for kept in self.keep]
        return Changes(
            reroutings=tuple(Rerouting(layer, off=off) for layer, off in zip(layers, dropped, strict=True) if off)
        )

    def told(self) -> str:
        """In words."""
        sizes = sorted({len(set(kept)) for kept in self.keep})
        return f"{' to '.join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))} experts kept in each layer"

    def random(self, shape: Shape, drawn: random.Random) -> Edit | None:
        """As many, drawn."""
        return Prune(tuple(tuple(sorted(drawn.sample(range(shape.experts), len(set(kept))))) for kept in self.keep))

    def saved(self, subject: Subject) -> Saved | None:
        """All dropped experts, and their router rows."""
        one = size_of_expert(subject)
        dropped = sum(subject.anatomy.shape.experts - len(set(kept)) for kept in self.keep)
        return Saved(one.parameters * dropped, one.bytes * dropped)
