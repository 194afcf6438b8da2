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
from functools import cache, partial

from torch import Tensor

from analysis import sampling, token_rows
from analysis.code import code_of
from analysis.errors import BadDeclaration, NotComparable, UnknownName
from analysis.slots import LayerBatch, Prompts, RouteBatch, Shape
from analysis.spec import Spec

NEEDS = ("routes", "layers", "gate", "outputs", "experts", "backward")
"""What a statistic can ask of a pass: routing of all layers; per-layer tensors; and on top of those the experts'
pre-activations, their output norms, the experts themselves, the gradient of the next-token loss (a backward pass)."""


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
        found = self._resampled(keep, partial(_without_block, block))
        return replace(found, prompts=replace(found.prompts, whole=self.prompts.categories))

    def without_stretch(self, stretch: int) -> State:
        """The state as if this stretch of each prompt's tokens had never been run, for what is kept token by token."""
        return replace(self, arrays=token_rows.without_stretch(self.arrays, stretch))

    def take(self, rows: list[int]) -> State:
        """The state of these prompts only, in this order; refuses to split what is kept by block."""

        def refuse(arrays: Mapping[str, Tensor], specs: Mapping[str, Spec]) -> Mapping[str, Tensor]:
            if sorted(rows) == list(range(len(self.prompts))):
                return arrays
            raise NotComparable(
                f"{self.statistic} keeps sums over blocks, or a sample, so {len(rows)} of its {len(self.prompts)} "
                "prompts cannot be taken out of it; ask with the same prompts on every side"
            )

        return self._resampled(rows, refuse)

    def _resampled(self, rows: list[int], other: Callable[[Mapping, Mapping], Mapping[str, Tensor]]) -> State:
        groups = get(self.statistic).groups
        arrays: dict[str, Tensor] = {}
        for kind, specs in groups.items():
            mine = {name: self.arrays[name] for name in specs}
            if kind == "prompt":
                arrays |= {name: array[rows] for name, array in mine.items()}
            else:
                arrays |= token_rows.of_prompts(mine, rows) if kind == "token" else other(mine, specs)
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
        return bool(self.needs - {"routes"})

    @property
    def groups(self) -> dict[str, dict[str, Spec]]:
        """Its arrays by how they are cut and merged: by "prompt", by "token", as a "sample", or by block ("sum")."""
        kinds: dict[str, dict[str, Spec]] = {}
        for name, spec in self.arrays.items():
            first = spec.axes[0] if spec.axes[0] in ("prompt", "token") else "sum"
            kinds.setdefault("sample" if spec.sampled else str(first), {})[name] = spec
        return kinds

    def empty(self, shape: Shape) -> State:
        """The neutral element: no prompt seen."""
        arrays = {name: spec.blank(name, spec.size(shape, 0)) for name, spec in self.arrays.items()}
        return State(self.name, shape, Prompts((), (), ()), arrays)

    def add(self, batch: RouteBatch | LayerBatch) -> State:
        """The state of one batch alone; raises `BadDeclaration` if it is not as declared."""
        return self.grow(self.empty(batch.shape), batch)

    def grow(self, state: State, batch: RouteBatch | LayerBatch) -> State:
        """This state and the batch, as `merge` would have it. Uses `state` up: its arrays are written in place.

        A function of a `LayerBatch` may give an array with a layer axis of size 1; no other layer is touched then.
        """
        given = self._given(batch)
        prompts, *rows = _union(state.prompts, batch.prompts)
        layer = batch.layer if isinstance(batch, LayerBatch) else 0
        arrays: dict[str, Tensor] = {}
        for kind, specs in self.groups.items():
            mine, new = ({name: side[name] for name in specs} for side in (state, given))
            if kind == "token":
                arrays |= token_rows.united(mine, new, (rows[0], rows[1]))
                continue
            if kind == "prompt" and len(prompts) > len(state.prompts):
                mine = {name: spec.spread(name, mine[name], rows[0], len(prompts)) for name, spec in specs.items()}
            parts = {name: spec.part(mine[name], new[name], layer) for name, spec in specs.items()}
            if kind == "sample":
                for name, array in sampling.merged(parts, new, specs).items():
                    parts[name].copy_(array)
            else:
                place = rows[1] if kind == "prompt" else slice(None)
                for name, part in parts.items():
                    part[place] = specs[name].both(part[place], new[name])
            arrays |= mine
        return replace(state, prompts=prompts, arrays=arrays)

    def merge(self, a: State, b: State) -> State:
        """Both together, in any order: rows by prompt or token united, samples too, the rest by sum or maximum."""
        if a.shape != b.shape or {a.statistic, b.statistic} != {self.name}:
            raise NotComparable(f"{self.name}: cannot merge {a.statistic} of {a.shape} with {b.statistic} of {b.shape}")
        prompts, *rows = _union(a.prompts, b.prompts)
        arrays: dict[str, Tensor] = {}
        for kind, specs in self.groups.items():
            left, right = ({name: side[name] for name in specs} for side in (a, b))
            if kind == "sample":
                arrays |= sampling.merged(left, right, specs)
            elif kind == "token":
                arrays |= token_rows.united(left, right, (rows[0], rows[1]))
            else:
                if kind == "prompt":
                    left = {n: specs[n].spread(n, array, rows[0], len(prompts)) for n, array in left.items()}
                    right = {n: specs[n].spread(n, array, rows[1], len(prompts)) for n, array in right.items()}
                arrays |= {name: spec.both(left[name], right[name]) for name, spec in specs.items()}
        return replace(a, prompts=prompts, arrays=arrays)

    def _given(self, batch: RouteBatch | LayerBatch) -> dict[str, Tensor]:
        given = {name: array.to("cpu") for name, array in self.function(batch).items()}
        for name, spec in self.arrays.items():
            size = spec.size(batch.shape, len(batch.prompts), len(batch.keys))
            thin = tuple(1 if a == "layer" else n for a, n in zip(spec.axes, size, strict=True))
            allowed = (size, thin) if isinstance(batch, LayerBatch) else (size,)
            if name not in given or tuple(given[name].shape) not in allowed or given[name].dtype != spec.dtype:
                seen = f"{tuple(given[name].shape)} {given[name].dtype}" if name in given else "nothing"
                raise BadDeclaration(f"{self.name}.{name}: declared {size} {spec.dtype}, the function gave {seen}")
        return given

    def bytes(self, shape: Shape, prompts: int, tokens: int = 0) -> int:
        """Memory of one state, exact from the declaration; only rows by prompt and by token grow."""
        sizes = (math.prod(s.size(shape, prompts, tokens)) * s.dtype.itemsize for s in self.arrays.values())
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
        _check_arrays(name, needs, arrays)
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


def _check_arrays(name: str, needs: tuple[str, ...], arrays: Mapping[str, Spec]) -> None:
    """Rows by token say whose they are and come from all layers at once; a sample has a hash and a block."""
    by_token = [array for array, spec in arrays.items() if spec.axes[0] == "token"]
    if by_token and (set(needs) != {"routes"} or not {"prompt", "position"} <= set(by_token)):
        raise BadDeclaration(f"statistic {name!r}: rows by token need `routes` alone, and arrays `prompt`, `position`")
    sampled = {array: spec for array, spec in arrays.items() if spec.sampled}
    if not sampled:
        return
    cell: tuple[str | int, ...] = sampled["hash"].axes if "hash" in sampled else ()
    same = [array for array, spec in sampled.items() if spec.axes[: len(cell)] == cell]
    whole = bool(cell) and all(array in sampled and sampled[array].axes == cell for array in ("hash", "block"))
    if not whole or not isinstance(cell[len(cell) - 1], int) or len(same) < len(sampled):
        raise BadDeclaration(
            f"statistic {name!r}: a sample has int64 arrays `hash` and `block` of axes (cell ..., n) and companions "
            f"that begin with these axes; it declares { {array: spec.axes for array, spec in sampled.items()} }"
        )


def _without_block(block: int, arrays: Mapping[str, Tensor], specs: Mapping[str, Spec]) -> Mapping[str, Tensor]:
    if any(spec.sampled for spec in specs.values()):
        return sampling.without(arrays, block, specs)
    return {name: _blank_block(name, array, specs[name], block) for name, array in arrays.items()}


def _blank_block(name: str, array: Tensor, spec: Spec, block: int) -> Tensor:
    if spec.axes[0] != "block":
        raise BadDeclaration(f"axes {spec.axes}: only arrays by prompt, token or block and samples can be resampled")
    array = array.clone()
    array[block] = spec.nothing(name)
    return array


def _union(a: Prompts, b: Prompts) -> tuple[Prompts, list[int], list[int]]:
    rows = {key: row for row, key in enumerate(dict.fromkeys(a.keys + b.keys))}
    labels = dict(zip(b.keys, b.categories, strict=True)) | dict(zip(a.keys, a.categories, strict=True))
    both = Prompts(tuple(k[0] for k in rows), tuple(k[1] for k in rows), tuple(labels[k] for k in rows))
    return both, [rows[k] for k in a.keys], [rows[k] for k in b.keys]
