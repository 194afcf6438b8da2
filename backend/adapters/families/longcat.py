"""LongCat-Flash: beside its experts a token may choose identity experts, which return it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backend.adapters.anatomy import Unsupported
from backend.adapters.fused import FusedLayer


@dataclass(frozen=True, eq=False)
class LongcatLayer(FusedLayer):
    """Indices from the number of experts upwards are identity experts; the router has rows for them too."""

    def alone(self, index: int, x: Tensor) -> Tensor:
        """The experts' own forward, which fails where tokens have one expert each: here a second one weighs nothing."""
        chosen, weights = torch.full((len(x), 2), index, device=x.device), x.new_tensor([[1.0, 0.0]])
        return self.experts(x, chosen, weights.expand(len(x), 2))

    def identity(self, indices: Tensor) -> Tensor:
        """True from the first index that no weights serve."""
        return indices >= self.size()[0]

    def first(self) -> tuple[Tensor | None, Tensor]:
        """The gate's and the up projections [expert, hidden, model]."""
        gate, up = super().first()  # made for identity experts too, and never read there
        assert gate is not None
        return gate[: self.size()[0]], up[: self.size()[0]]

    def _router_weight(self) -> Tensor:
        classifier: Any = self.router.classifier
        return classifier.weight[: self.size()[0]]

    def _router_bias(self) -> Tensor:
        bias: Any = self.router.e_score_correction_bias
        return bias[: self.size()[0]]


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> LongcatLayer | None:
    """The layer whose experts module is `modules[name]`, if that is LongCat's.

    Raises:
        Unsupported: If all its experts are identity experts.
    """
    experts: Any = modules[name]
    if type(experts).__name__ != "LongcatFlashExperts":
        return None
    if experts.down_proj is None:
        raise Unsupported(f"{name} has identity experts alone: there are no weights to measure")
    block: Any = modules[name.rpartition(".")[0]]
    return LongcatLayer(label, name, experts, block.router, block, block.router.top_k)
