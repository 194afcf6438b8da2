"""JetMoE: tokens sorted by expert go through two stacks of matrices that lie on the block itself.

Its attention is a mixture of experts too, with a router of its own; that one is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from backend.adapters.anatomy import Called, Returned, as_rows
from backend.adapters.fused import FusedLayer


@dataclass(frozen=True, eq=False)
class JetMoeLayer(FusedLayer):
    """Block and experts are one module; `input_linear` holds gate and up, and a bias is added to the sum."""

    def alone(self, index: int, x: Tensor) -> Tensor:
        """Both stacks' own forward, all rows given to one expert."""
        block: Any = self.experts
        sizes = [len(x) if each == index else 0 for each in range(self.size()[0])]
        gate, up = block.input_linear(x, sizes).chunk(2, dim=-1)
        return block.output_linear(block.activation(gate) * up, sizes)

    def read_logits(self, output: Any) -> Any:
        """The last of what the router returns."""
        return output[-1]

    @contextmanager
    def listen(self, called: Called, returned: Returned | None = None) -> Iterator[None]:
        """The router returns how it sorted (token, slot) pairs by expert, and the weights in that order."""

        def routed(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            order, _, gates, sizes, _ = output
            experts = torch.arange(len(sizes), device=order.device)
            chosen, weights = torch.empty_like(order), torch.empty_like(gates)
            chosen[order] = experts.repeat_interleave(torch.tensor(sizes, device=order.device))
            weights[order] = gates
            called(as_rows(args[0]), chosen.view(-1, self.top_k), weights.view(-1, self.top_k))

        def after(block: Any, args: tuple[Any, ...], output: Tensor) -> None:
            if returned is not None:
                returned(as_rows(output - block.bias))

        handles = (self.router.register_forward_hook(routed), self.experts.register_forward_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def first(self) -> tuple[Tensor | None, Tensor]:
        """The gate's and the up projections [expert, hidden, model]."""
        stack: Any = self.experts.input_linear
        return self._split(stack.weight)

    def down(self) -> Tensor:
        """The down projections [expert, model, hidden]."""
        stack: Any = self.experts.output_linear
        return stack.weight

    def phi(self, gate: Tensor | None, up: Tensor) -> Tensor:
        """What stands between them."""
        block: Any = self.experts
        return block.activation(gate) * up


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> JetMoeLayer | None:
    """The layer whose block is `modules[name]`, if that is JetMoE's."""
    block: Any = modules[name]
    if type(block).__name__ != "JetMoeMoE":
        return None
    return JetMoeLayer(label, name, block, block.router, block, block.router.top_k)
