"""Routing changed in flight: an expert's logit at -inf, or a choice forced, before the model's own normalisation.

For the length of a `with`, block and router have a `forward` of their own that calls the class's and watches the torch
functions it calls: the router's product with its rows gives the logits, a `topk` over all experts gives the choice. The
model's own code then makes weights of what it finds, so no rule of normalisation is written down here a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from backend.adapters.anatomy import MoeLayer, Unsupported

_PRODUCTS = (F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
_RANKINGS = (torch.topk, Tensor.topk)


@dataclass(frozen=True, eq=False)
class Rerouting:
    """What is changed in one layer: experts that no token may have, or one that every token has."""

    layer: MoeLayer
    off: tuple[int, ...] = ()
    on: int | None = None


@contextmanager
def rerouted(change: Rerouting) -> Iterator[None]:
    """Route so; modules are as they were afterwards, error or not.

    Raises:
        Unsupported: In the pass, if the router shows no logits to mask, or no ranking to change.
    """
    layer, mode = change.layer, _Mode(change)

    def block(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        mode.masked = mode.forced = 0
        with mode:
            out = forward(*args, **kwargs)
        mode.check()
        return out

    def router(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        mode.in_router = True
        try:
            return forward(*args, **kwargs)
        finally:
            mode.in_router = False

    with _around(layer.block, block), _around(layer.router, router):
        yield


@contextmanager
def _around(module: nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    before, own = module.forward, module.__dict__.get("forward")
    module.forward = lambda *args, **kwargs: call(before, *args, **kwargs)
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


class _Mode(TorchFunctionMode):
    def __init__(self, change: Rerouting) -> None:
        super().__init__()
        self._change, self._experts = change, change.layer.size()[0]
        self._off = list(change.off)
        self.in_router, self.masked, self.forced = False, 0, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _RANKINGS:
            return self._ranked(func, args, kwargs)
        out = func(*args, **kwargs)
        if self.in_router and not self.masked and func in _PRODUCTS and out.shape[-1] == self._experts:
            self.masked = 1
            return self._silenced(out)
        return out

    def _ranked(self, func: Any, args: Any, kwargs: Any) -> Any:
        scores = args[0] if args else kwargs["input"]
        if scores.shape[-1] != self._experts:  # of groups, or of anything else
            return func(*args, **kwargs)
        # A selection bias may lift a score that its logit left at 0, so the ranking is masked too.
        scores = self._silenced(scores)
        out = func(scores, *args[1:], **{name: value for name, value in kwargs.items() if name != "input"})
        if self._change.on is None or out[1].shape[-1] != self._change.layer.top_k:
            return out
        self.forced += 1
        return _with(self._change.on, scores, *out)

    def _silenced(self, scores: Tensor) -> Tensor:
        if not self._off:
            return scores
        return scores.index_fill(-1, torch.tensor(self._off, device=scores.device), -math.inf)

    def check(self) -> None:
        """An edit that took no hold is a refusal, never a result."""
        name = self._change.layer.name
        if self._off and not self.masked:
            raise Unsupported(f"the router of {name} forms its logits where they cannot be seen: no expert can be off")
        if self._change.on is not None and not self.forced:
            raise Unsupported(f"the router of {name} does not rank by topk: no expert can be forced on")


def _with(expert: int, scores: Tensor, values: Tensor, indices: Tensor) -> Any:
    """The k best with this expert among them, in the place of the last-ranked where it was not."""
    there = (indices == expert).any(-1, keepdim=True)
    last = values.argmin(-1, keepdim=True)  # not the last column: a model may ask for no order
    own = scores[..., expert : expert + 1]
    return torch.return_types.topk(  # pyright: ignore[reportAttributeAccessIssue]
        (
            torch.where(there, values, values.scatter(-1, last, own)),
            torch.where(there, indices, indices.scatter(-1, last, expert)),
        )
    )
