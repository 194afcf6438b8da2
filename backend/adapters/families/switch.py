"""Switch Transformers: one expert a token, each a module of its own, and only so many tokens an expert."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backend.adapters.anatomy import Called, Returned, as_rows
from backend.adapters.families.listed import ListedLayer


@dataclass(frozen=True, eq=False)
class SwitchLayer(ListedLayer):
    """`expert_0`, `expert_1` ... of `wi` and `wo` without a gate; a mask says who serves which token."""

    def read_logits(self, output: Any) -> Any:
        """The last of what the router returns."""
        return output[-1]

    def dropped(self, indices: Tensor, weights: Tensor) -> Tensor:
        """True where the weight is zero: the probability of the likeliest expert never is."""
        return weights == 0

    @contextmanager
    def listen(self, called: Called, returned: Returned | None = None) -> Iterator[None]:
        """Served is who has a mark in the mask.

        The mask of a dropped token is empty: the expert it had chosen is that of its largest logit.
        """
        routed = threading.local()

        def heard(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            routed.likeliest = as_rows(output[-1]).argmax(-1, keepdim=True)

        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            x, mask, weights = args
            mask = as_rows(mask)
            served = mask.any(-1, keepdim=True)
            chosen = torch.where(served, mask.argmax(-1, keepdim=True), routed.likeliest)
            called(as_rows(x), chosen, as_rows(weights) * served)

        def after(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if returned is not None:
                returned(as_rows(output))

        handles = (
            self.router.register_forward_hook(heard),
            self.experts.register_forward_pre_hook(before),
            self.experts.register_forward_hook(after),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> SwitchLayer | None:
    """The layer whose experts module is `modules[name]`, if that is Switch Transformers'."""
    if type(modules[name]).__name__ != "SwitchTransformersExperts":
        return None
    block: Any = modules[name.rpartition(".")[0]]
    return SwitchLayer(label, name, modules[name], block.router, block, 1)
