"""A GGUF file's facts and float tensors, every length checked against the file before it is believed.

Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backend.errors import Refusal

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TENSORS = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 27: np.dtype("<i8"), 28: np.dtype("<f8")}
_MOST = 1_000_000
"""Entries of a file, and of a list in it: a damaged count would have us read for hours."""


@dataclass(frozen=True)
class Gguf:
    """What a file says of itself, and its tensors by name; axes in numpy's order, the reverse of the file's."""

    facts: dict[str, Any]
    tensors: dict[str, np.ndarray]


def read_gguf(path: Path) -> Gguf:
    """The file; raises `Refusal` for one that is cut short, of another version or holds quantised tensors."""
    if path.stat().st_size < 24:
        raise Refusal(f"{path.name} has {path.stat().st_size} bytes, less than the head of a GGUF file.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(data, path.name).read()


class _Reader:
    """Goes through the bytes once."""

    def __init__(self, data: mmap.mmap, name: str):
        self._data, self._name, self._at = data, name, 0

    def read(self) -> Gguf:
        if self._take(4) != MAGIC:
            raise Refusal(f"{self._name} is no GGUF file: it does not begin with GGUF.")
        version = self._number("I")
        if version not in VERSIONS:
            raise Refusal(f"{self._name} is GGUF of version {version}; versions 2 and 3, little-endian, are read.")
        tensors, facts = self._count("tensors"), self._count("facts")
        told = dict(self._fact() for _ in range(facts))
        infos = [self._info() for _ in range(tensors)]
        alignment = told.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise Refusal(f"{self._name}: general.alignment is {alignment!r}; it must be a whole number of 1 or more.")
        start = -(-self._at // alignment) * alignment
        return Gguf(told, {name: self._tensor(name, start + at, shape, kind) for name, shape, kind, at in infos})

    def _fact(self) -> tuple[str, Any]:
        name = self._text()
        return name, self._value(self._number("I"), name)

    def _value(self, kind: int, name: str) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            of, length = self._number("I"), self._count(f"values of {name}")
            if of == _ARRAY:
                raise Refusal(f"{self._name}: {name} is a list of lists, which nothing that is read here needs.")
            return [self._value(of, name) for _ in range(length)]
        if kind not in _SCALARS:
            raise Refusal(f"{self._name}: {name} is of the unknown type {kind}.")
        return self._number(_SCALARS[kind])

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        axes = self._number("I")
        if axes > 4:
            raise Refusal(f"{self._name}: the tensor {name} has {axes} axes; at most 4 are possible.")
        shape = tuple(self._number("Q") for _ in range(axes))
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _tensor(self, name: str, start: int, shape: tuple[int, ...], kind: int) -> np.ndarray:
        if kind not in _TENSORS:
            raise Refusal(
                f"{self._name}: the tensor {name} is of type {kind}; float32, float16, float64 and int64 are read."
            )
        dtype, count = _TENSORS[kind], 1
        for size in shape:
            count *= size
        end = start + count * dtype.itemsize
        if end > len(self._data):
            raise Refusal(
                f"{self._name} ends at byte {len(self._data):,}, and its tensor {name} at {end:,}. Was it cut short?"
            )
        # A copy: the file is closed behind us.
        return np.frombuffer(self._data, dtype, count, start).reshape(shape).copy()

    def _count(self, of: str) -> int:
        found = self._number("Q")
        if found > _MOST:
            raise Refusal(f"{self._name} says that it has {found:,} {of}; at most {_MOST:,} are read.")
        return found

    def _text(self) -> str:
        size = self._number("Q")
        data = self._take(size)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Refusal(f"{self._name}: the text before byte {self._at:,} is no UTF-8.") from error

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise Refusal(
                f"{self._name} ends at byte {len(self._data):,}, in the middle of its head. Was it cut short?"
            )
        self._at += size
        return self._data[self._at - size : self._at]
