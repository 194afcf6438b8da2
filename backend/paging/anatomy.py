"""Where the parts of a paged model live: as of any other, but weights come into memory when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.adapters import adapt
from backend.adapters.anatomy import STACKED, Anatomy, MoeLayer
from backend.paging.pager import Pager


@dataclass(frozen=True, eq=False)
class PagedAnatomy(Anatomy):
    """An anatomy whose weight slots are read from disk, a layer at a time, and of a layer what the slot needs."""

    pager: Pager

    def decoder(self, layer: MoeLayer) -> int:
        """The decoder layer that this one is in."""
        return int(layer.name.removeprefix(f"{self.pager.body}.").partition(".")[0])

    def inside(self, decoder: int) -> list[int]:
        """Which of `layers` are in this decoder layer."""
        return [n for n, layer in enumerate(self.layers) if self.decoder(layer) == decoder]

    def weights(self, name: str, layer: int | None = None) -> Tensor:
        """As `Anatomy.weights`; what is returned outlives the layer."""
        if layer is None:
            return torch.stack([self.weights(name, each) for each in range(len(self.layers))])
        own = self.layers[layer]
        block, small = own.name.rpartition(".")[0], name in STACKED

        def wanted(parameter: str) -> bool:
            experts = parameter == own.name or parameter.startswith(f"{own.name}.")
            return parameter.startswith(f"{block}.") and not (small and experts)

        with self.pager.held(self.decoder(own), wanted):
            return super().weights(name, layer)


def paged(pager: Pager) -> PagedAnatomy:
    """Where the experts of this paged model live; raises as `adapt` does."""
    found = adapt(pager.model)
    return PagedAnatomy(found.layers, found.shape, found.model_type, pager)
