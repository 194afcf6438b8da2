"""DBRX: all experts' matrices under one another in three tables, the last of them transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from backend.adapters.fused import FusedLayer


@dataclass(frozen=True, eq=False)
class DbrxLayer(FusedLayer):
    """`experts.mlp.{w1,v1,w2}`, each [expert x hidden, model]; the router's linear child gives logits alone."""

    def alone(self, index: int, x: Tensor) -> Tensor:
        """The experts' own forward, which takes its first axis for that of sequences."""
        return super().alone(index, x).reshape(x.shape)

    def first(self) -> tuple[Tensor | None, Tensor]:
        """The gate's and the up projections [expert, hidden, model]."""
        return self._table("w1"), self._table("v1")

    def down(self) -> Tensor:
        """The down projections [expert, model, hidden]."""
        return self._table("w2").transpose(1, 2)

    def phi(self, gate: Tensor | None, up: Tensor) -> Tensor:
        """What stands between them."""
        mlp: Any = self.experts.mlp
        return mlp.activation_fn(gate) * up

    def _table(self, name: str) -> Tensor:
        mlp: Any = self.experts.mlp
        return getattr(mlp, name).view(mlp.moe_num_experts, mlp.ffn_hidden_size, mlp.hidden_size)


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> DbrxLayer | None:
    """The layer whose experts module is `modules[name]`, if that is DBRX's."""
    if type(modules[name]).__name__ != "DbrxExperts":
        return None
    block: Any = modules[name.rpartition(".")[0]]
    return DbrxLayer(label, name, modules[name], block.router, block, block.top_k)
