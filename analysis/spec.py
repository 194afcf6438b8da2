"""What a statistic declares of one of its arrays: axes, dtype, and how two of it merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from analysis.slots import BLOCKS, Shape

EMPTY = torch.iinfo(torch.int64).max
"""Hash of an empty place of a sample: above every hash of a token, so empty places come last."""


@dataclass(frozen=True)
class Spec:
    """One array of a state: axis names (or fixed sizes), dtype, and how two of it merge.

    The first axis is "prompt" (rows keyed by prompt, merged by union), "block" (rows keyed by the block of the prompt)
    or "token" (rows keyed by token, merged by union: declare `prompt` and `position` too). Otherwise the array belongs
    to a hash sample (`merge="sample"`): cells, then places by size, as `analysis.sampling` says. `routed=False` says
    that it also sums over tokens which the expert did not serve. "beside" is an axis of as many shared experts as the
    model has, none or one, and "shared" the hidden width of it: both are empty in most models, and cost nothing there.
    """

    axes: tuple[str | int, ...]
    dtype: torch.dtype = torch.float64
    merge: Literal["sum", "max", "sample"] = "sum"
    routed: bool = True

    @property
    def sampled(self) -> bool:
        """True for an array of a hash sample."""
        return self.merge == "sample"

    def size(self, shape: Shape, prompts: int, tokens: int = 0) -> tuple[int, ...]:
        """Sizes of the axes for this model and number of prompts and tokens."""
        known = {
            "prompt": prompts,
            "token": tokens,
            "block": BLOCKS,
            "layer": len(shape.layers),
            "expert": shape.experts,
            "k": shape.top_k,
            "model": shape.model,
            "hidden": shape.hidden,
            "shared": shape.shared,
            "beside": min(shape.shared, 1),
        }
        return tuple(axis if isinstance(axis, int) else known[axis.removesuffix("_b")] for axis in self.axes)

    def blank(self, name: str, size: tuple[int, ...]) -> Tensor:
        """An array of this size in which nothing was seen."""
        return torch.full(size, self.nothing(name), dtype=self.dtype)

    def nothing(self, name: str) -> float | int:
        """What an entry holds before anything is seen: 0, -inf for a maximum; NaN or -1 in an empty place."""
        if self.merge == "max":
            return -math.inf
        if not self.sampled:
            return 0
        if name == "hash":
            return EMPTY
        return math.nan if self.dtype.is_floating_point else -1

    def both(self, left: Tensor, right: Tensor) -> Tensor:
        """Two arrays that are summed, or of which the larger counts, as one."""
        return torch.maximum(left, right) if self.merge == "max" else left + right

    def spread(self, name: str, array: Tensor, rows: list[int], prompts: int) -> Tensor:
        """An array by prompt with its rows at these places among more prompts."""
        wide = self.blank(name, (prompts, *array.shape[1:]))
        wide[rows] = array
        return wide

    def part(self, whole: Tensor, given: Tensor, layer: int) -> Tensor:
        """What a batch speaks of: the whole array, or its one layer where it gives no more. A view."""
        axis = self.axes.index("layer") if "layer" in self.axes else None
        return whole if axis is None or given.shape[axis] == whole.shape[axis] else whole.narrow(axis, layer, 1)
