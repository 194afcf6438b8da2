"""Brings the weights of one decoder layer into a model, and takes them out again."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from backend.checkpoints.soundness import check_finite
from backend.errors import Refusal
from backend.paging.skeleton import Skeleton, Unpageable, skeleton

Raw = dict[str, Tensor]
M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


class Pager:
    """A model of which one layer at a time has weights. `fuse_seconds` is what transformers' conversions took.

    A layer stays as long as somebody holds it. What the next layer will need may be read ahead: then one layer's
    tensors as they lie on disk are in memory beside the layer that runs.
    """

    def __init__(self, folder: Path, device: str, name: str, held: Mapping[str, Any]):
        _one_arena()
        self._made: Skeleton = skeleton(folder, device, name, held)
        self._where = (folder, name)
        self._name = name
        self._blank = [dict(_parameters(layer)) for layer in self._made.layers]
        self._together = self._made.shared_targets()
        self._holders = [0] * len(self._blank)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="paging")
        self._ahead: tuple[int, Future[Raw]] | None = None
        self.fuse_seconds = 0.0
        for layer in self._made.layers:
            layer.register_forward_pre_hook(self._refuse_absent)

    @property
    def model(self) -> Any:
        """The model, as transformers made it."""
        return self._made.model

    @property
    def body(self) -> str:
        """Name of the list of decoder layers."""
        return self._made.body

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers."""
        return self._made.layers

    @property
    def files(self) -> Any:
        """Where tensors are read from, with its counts."""
        return self._made.files

    def layer_bytes(self) -> int:
        """Bytes on disk of the largest layer."""
        return max(sum(map(self.files.size, keys)) for keys in self._made.keys)

    @contextmanager
    def held(self, index: int, wanted: Callable[[str], bool] | None = None) -> Iterator[None]:
        """This layer with its weights; with `wanted`, of parameters of such names alone if nobody holds all of it.

        Raises:
            Unpageable: If the files lack a tensor of it.
            Refusal: If one of them has another shape than the config says, or holds NaN.
        """
        if not self._holders[index]:
            self._bring(index, wanted)
        self._holders[index] += 1
        try:
            yield
        finally:
            self._holders[index] -= 1
            if not self._holders[index]:
                self._drop(index)

    def read_ahead(self, index: int) -> None:
        """Begin to read a layer that is wanted next, if there is such a layer; one read before for another goes."""
        if index < len(self._holders) and (self._ahead is None or self._ahead[0] != index):
            self._ahead = (index, self._reader.submit(self._read, self._made.keys[index]))

    def forget(self) -> None:
        """Nobody will want what was read ahead."""
        self._ahead = None

    def _bring(self, index: int, wanted: Callable[[str], bool] | None) -> None:
        ahead, keys = self._ahead, self._made.keys[index]
        if wanted is not None:
            raw = self._read([key for key in keys if wanted(self._made.targets[key])])
        elif ahead is not None and ahead[0] == index:
            self._ahead = None
            raw = ahead[1].result()
        else:
            raw = self._read(keys)
        start = time.perf_counter()
        self._made.put(raw, self._where)
        self.fuse_seconds += time.perf_counter() - start
        try:
            check_finite(self.layers[index], *self._where)
        except Refusal:
            self._drop(index)
            raise
        missing = [name for name, found in _parameters(self.layers[index]) if found.is_meta]
        missing += [name for name, found in self.layers[index].named_buffers() if found.is_meta]
        if missing and wanted is None:
            self._drop(index)
            raise Unpageable(
                f"{self._name} lacks {len(missing)} tensors of layer {index}, the first of them {missing[0]}."
            )

    def _read(self, keys: Iterable[str]) -> Raw:
        together = [key for key in keys if key in self._together]
        return self.files.read(together, [key for key in keys if key not in self._together])

    def _drop(self, index: int) -> None:
        layer = self.layers[index]
        for name, blank in self._blank[index].items():
            path, _, own = name.rpartition(".")
            layer.get_submodule(path)._parameters[own] = blank
        _give_back()

    def _refuse_absent(self, layer: nn.Module, args: Any) -> None:
        handed = "forward" in vars(layer)  # what it gave before stands in for it
        if not handed and any(found.is_meta for _, found in _parameters(layer)):
            raise Unpageable(f"{self._name} is paged: a layer was run that is not in memory now.")


def _parameters(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    yield from layer.named_parameters(remove_duplicate=False)


def _give_back() -> None:
    """Memory that the allocator keeps for later goes back to the machine: the next layer's pieces have other sizes."""
    _glibc("malloc_trim", 0)


def _one_arena() -> None:
    """Threads that run in turn share what one of them has given back; glibc would keep a heap for each."""
    _glibc("mallopt", M_ARENA_MAX, 1)


def _glibc(name: str, *args: int) -> None:
    """Ask glibc's allocator; other systems' have no such door."""
    asked = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if asked is not None:
        asked(*args)
