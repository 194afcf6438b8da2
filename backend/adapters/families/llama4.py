"""Llama 4: the router's score multiplies what goes into an expert, and every expert runs on every token.

A token that was not routed to an expert reaches it as zeros, and comes out as zeros. So an expert's input is score
times token, and its output enters the sum with weight 1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backend.adapters.anatomy import Called, Returned, Unsupported
from backend.adapters.fused import FusedLayer


@dataclass(frozen=True, eq=False)
class Llama4Layer(FusedLayer):
    """Fused experts [expert, model, 2 hidden], called with [expert x token, model] and nothing else."""

    @property
    def _transposed(self) -> bool:
        return True

    def alone(self, index: int, x: Tensor) -> Tensor:
        """The experts' own forward, all others given zeros."""
        rows = [x if each == index else torch.zeros_like(x) for each in range(self.size()[0])]
        return self.experts(torch.cat(rows)).view(len(rows), *x.shape)[index]

    def read_logits(self, output: Any) -> Any:
        """The second of what the router returns: the first are the sigmoids of those chosen, and zeros."""
        return output[1]

    @contextmanager
    def listen(self, called: Called, returned: Returned | None = None) -> Iterator[None]:
        """Chosen are the experts whose score is not zero."""
        routed = threading.local()

        def heard(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            routed.chosen = output[0].nonzero()[:, 1].view(len(output[0]), self.top_k)

        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            chosen = routed.chosen
            given = args[0].view(self.size()[0], len(chosen), -1)
            x = given[chosen[:, 0], torch.arange(len(chosen), device=chosen.device)]
            called(x, chosen, torch.ones_like(x[:, :1]))

        def after(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if returned is not None:
                returned(output.view(self.size()[0], -1, output.shape[-1]).sum(0))

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


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> Llama4Layer | None:
    """The layer whose experts module is `modules[name]`, if that is Llama 4's.

    Raises:
        Unsupported: If a token has several experts, each of which is given another multiple of it.
    """
    if type(modules[name]).__name__ != "Llama4TextExperts":
        return None
    block: Any = modules[name.rpartition(".")[0]]
    if block.top_k != 1:
        raise Unsupported(
            f"{name} multiplies a token by a score before each of its {block.top_k} experts: they see "
            f"{block.top_k} inputs where one was expected"
        )
    return Llama4Layer(label, name, modules[name], block.router, block, block.top_k)
