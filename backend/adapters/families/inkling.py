"""Inkling: the last rows of the router weigh the shared experts, which serve every token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from backend.adapters.fused import FusedLayer


@dataclass(frozen=True, eq=False)
class InklingLayer(FusedLayer):
    """Fused experts whose router has more rows than there are routed experts."""

    def _router_weight(self) -> Tensor:
        weight: Any = self.router.weight
        return weight[: self.size()[0]]


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> InklingLayer | None:
    """The layer whose experts module is `modules[name]`, if that is Inkling's first model's."""
    if type(modules[name]).__name__ != "InklingExperts":
        return None
    block: Any = modules[name.rpartition(".")[0]]
    return InklingLayer(label, name, modules[name], block.gate, block, block.gate.top_k)
