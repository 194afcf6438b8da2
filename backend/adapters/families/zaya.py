"""ZAYA: a token may choose to skip the experts; its router is a small network with a state from layer to layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from backend.adapters.fused import FusedLayer


@dataclass(frozen=True, eq=False)
class ZayaLayer(FusedLayer):
    """A skipped token is handed on as expert 0 at weight 0; here it is the index after the last expert's."""

    def read_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """The three arguments, with skips told from the expert in whose name they come."""
        x, indices, weights = super().read_call(args, kwargs)
        return x, indices.masked_fill(weights == 0, self.size()[0]), weights

    def skipped(self, indices: Tensor, weights: Tensor) -> Tensor:
        """True at the index after the last expert's."""
        return indices == self.size()[0]

    def flight_order(self, indices: Tensor, pieces: int) -> Tensor | None:
        """As the model saw the indices."""
        return super().flight_order(indices.masked_fill(indices == self.size()[0], 0), pieces)

    def rows(self) -> nn.Module:
        """The router itself: no linear map of its input gives a score."""
        return self.router


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> ZayaLayer | None:
    """The layer whose experts module is `modules[name]`, if that is ZAYA's."""
    if type(modules[name]).__name__ != "ZayaExperts":
        return None
    block: Any = modules[name.rpartition(".")[0]]
    return ZayaLayer(label, name, modules[name], block.gate, block, block.gate.top_k)
