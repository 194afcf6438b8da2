"""A statistic: what is expensive, because it needs the model and the tokens.

It is a commutative monoid. A file in `analysis/statistics` declares its arrays (axes, dtype, how they merge) and one
function from a batch to those arrays; merging, resampling and byte counts follow from the declaration, so they are
written once, here.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from analysis.code import code_of
from analysis.errors import BadDeclaration, NotComparable, UnknownName
from analysis.slots import BLOCKS, LayerBatch, Prompts, RouteBatch, Shape

NEEDS = ("routes", "layers", "outputs")
"""What a statistic can ask of a pass: routing of all layers, per-layer tensors, and output norms on top."""


@dataclass(frozen=True)
class Spec:
    """One array of a state: axis names (or fixed sizes), dtype, and how two of it merge.

    The first axis may be "prompt" (rows keyed by prompt, merged by union) or "block" (rows keyed by the block of the
    prompt).
    """

    axes: tuple[str | int, ...]
    dtype: torch.dtype = torch.float64
    merge: Literal["sum", "max"] = "sum"

    def size(self, shape: Shape, prompts: int) -> tuple[int, ...]:
        """Sizes of the axes for this model and number of prompts."""
        known = {
            "prompt": prompts,
            "block": BLOCKS,
            "layer": len(shape.layers),
            "expert": shape.experts,
            "model": shape.model,
        }
        return tuple(axis if isinstance(axis, int) else known[axis.removesuffix("_b")] for axis in self.axes)


@dataclass(frozen=True)
class State:
    """What a statistic has seen so far. Frozen; `merge` makes a new one."""

    statistic: str
    shape: Shape
    prompts: Prompts
    arrays: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def soft(self) -> bool:
        """True when the model has no selections (k = E)."""
        return self.shape.soft

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks that hold at least one prompt, ascending."""
        return tuple(sorted(set(self.prompts.blocks)))

    def labelled(self, categories: Mapping[tuple[str, str], str]) -> State:
        """The same state under these categories: labels are the prompt set's, not the capture's."""
        labels = tuple(categories[key] for key in self.prompts.keys)
        return replace(self, prompts=replace(self.prompts, categories=labels))

    def without_block(self, block: int) -> State:
        """The state as if the prompts of this block had never been run."""
        keep = [row for row, b in enumerate(self.prompts.blocks) if b != block]
        return self._resampled(keep, lambda array, spec: _blank_block(array, spec, block))

    def take(self, rows: list[int]) -> State:
        """The state of these prompts only, in this order; refuses to split what is kept by block."""

        def refuse(array: Tensor, spec: Spec) -> Tensor:
            if sorted(rows) == list(range(len(self.prompts))):
                return array
            raise NotComparable(
                f"{self.statistic} keeps sums over blocks, so {len(rows)} of its {len(self.prompts)} prompts "
                "cannot be taken out of it; ask with the same prompts on every side"
            )

        return self._resampled(rows, refuse)

    def _resampled(self, rows: list[int], other: Callable[[Tensor, Spec], Tensor]) -> State:
        specs = get(self.statistic).arrays
        arrays = {n: a[rows] if specs[n].axes[0] == "prompt" else other(a, specs[n]) for n, a in self.arrays.items()}
        return replace(self, prompts=self.prompts.take(rows), arrays=arrays)


@dataclass(frozen=True)
class Statistic:
    """A registered statistic: its declaration and its function from one batch to arrays."""

    name: str
    function: Callable[..., dict[str, Tensor]]
    needs: frozenset[str]
    arrays: Mapping[str, Spec]

    @property
    def reads_layers(self) -> bool:
        """True when it is fed `LayerBatch`es, False for `RouteBatch`es."""
        return bool(self.needs & {"layers", "outputs"})

    def empty(self, shape: Shape) -> State:
        """The neutral element: no prompt seen."""
        arrays = {name: _blank(spec.size(shape, 0), spec) for name, spec in self.arrays.items()}
        return State(self.name, shape, Prompts((), (), ()), arrays)

    def add(self, batch: RouteBatch | LayerBatch) -> State:
        """The state of one batch alone; raises `BadDeclaration` if it is not as declared."""
        arrays = {name: array.to("cpu") for name, array in self.function(batch).items()}
        for name, spec in self.arrays.items():
            size = spec.size(batch.shape, len(batch.prompts))
            if name not in arrays or tuple(arrays[name].shape) != size or arrays[name].dtype != spec.dtype:
                seen = f"{tuple(arrays[name].shape)} {arrays[name].dtype}" if name in arrays else "nothing"
                raise BadDeclaration(f"{self.name}.{name}: declared {size} {spec.dtype}, the function gave {seen}")
        return State(self.name, batch.shape, batch.prompts, arrays)

    def merge(self, a: State, b: State) -> State:
        """Both together, in any order: prompt rows by union, the rest by sum or maximum."""
        if a.shape != b.shape or {a.statistic, b.statistic} != {self.name}:
            raise NotComparable(f"{self.name}: cannot merge {a.statistic} of {a.shape} with {b.statistic} of {b.shape}")
        prompts, rows_a, rows_b = _union(a.prompts, b.prompts)
        arrays = {}
        for name, spec in self.arrays.items():
            left, right = a[name], b[name]
            if spec.axes[0] == "prompt":
                left, right = (_spread(x, rows, len(prompts), spec) for x, rows in ((left, rows_a), (right, rows_b)))
            arrays[name] = torch.maximum(left, right) if spec.merge == "max" else left + right
        return replace(a, prompts=prompts, arrays=arrays)

    def bytes(self, shape: Shape, prompts: int) -> int:
        """Memory of one state, exact from the declaration."""
        sizes = (math.prod(s.size(shape, prompts)) * s.dtype.itemsize for s in self.arrays.values())
        return sum(sizes)

    @property
    def code(self) -> str:
        """Digest of the code that decides its numbers, for the key of stored states; blind to docstrings."""
        module = inspect.getmodule(self.function)
        return code_of([module] if module else [])


_REGISTRY: dict[str, Statistic] = {}


def statistic(*, needs: tuple[str, ...], arrays: Mapping[str, Spec]) -> Callable[[Callable], Statistic]:
    """Register the decorated function, under its own name, as a statistic.

    Returns:
        A decorator that gives the registered `Statistic`.

    Raises:
        BadDeclaration: If the name is taken, or it needs what no pass can give.

    Source:
        Ours: the file is the registration, so there is no list to keep in step.
    """

    def register(function: Callable) -> Statistic:
        name = function.__name__
        if name in _REGISTRY and _REGISTRY[name].function.__module__ != function.__module__:
            raise BadDeclaration(
                f"statistic {name!r} is declared twice: {_REGISTRY[name].function.__module__}, {function.__module__}"
            )
        if unknown := set(needs) - set(NEEDS):
            raise BadDeclaration(f"statistic {name!r} needs {sorted(unknown)}; a pass can give {list(NEEDS)}")
        _REGISTRY[name] = Statistic(name, function, frozenset(needs), dict(arrays))
        return _REGISTRY[name]

    return register


@cache
def statistics() -> dict[str, Statistic]:
    """All statistics: whatever file lies in `analysis/statistics`.

    Returns:
        Statistics by name, in the order of their files.

    Source:
        Ours: discovery by walking the folder.
    """
    package = importlib.import_module("analysis.statistics")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTRY)


def get(name: str) -> Statistic:
    """The statistic of this name.

    Returns:
        The registered statistic.

    Raises:
        UnknownName: With the known names.

    Source:
        Ours.
    """
    if name not in statistics():
        raise UnknownName(f"no statistic {name!r}; known: {', '.join(sorted(statistics()))}")
    return statistics()[name]


def _blank(size: tuple[int, ...], spec: Spec) -> Tensor:
    fill = -math.inf if spec.merge == "max" else 0
    return torch.full(size, fill, dtype=spec.dtype)


def _blank_block(array: Tensor, spec: Spec, block: int) -> Tensor:
    if spec.axes[0] != "block":
        raise BadDeclaration(f"axes {spec.axes}: only arrays by prompt or by block can be resampled")
    array = array.clone()
    array[block] = -math.inf if spec.merge == "max" else 0
    return array


def _union(a: Prompts, b: Prompts) -> tuple[Prompts, list[int], list[int]]:
    rows = {key: row for row, key in enumerate(dict.fromkeys(a.keys + b.keys))}
    labels = dict(zip(b.keys, b.categories, strict=True)) | dict(zip(a.keys, a.categories, strict=True))
    both = Prompts(tuple(k[0] for k in rows), tuple(k[1] for k in rows), tuple(labels[k] for k in rows))
    return both, [rows[k] for k in a.keys], [rows[k] for k in b.keys]


def _spread(array: Tensor, rows: list[int], size: int, spec: Spec) -> Tensor:
    wide = _blank((size, *array.shape[1:]), spec)
    wide[rows] = array
    return wide
