"""The tensors of a checkpoint's files, read when they are asked for and counted as they are read.

Plain reads into memory of our own: a mapping of the files would count against a limit of a process's data, and its
pages against what a machine has left.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from backend.checkpoints.headers import BITS, TensorHeader, read_places, weight_files
from backend.errors import Conflict, Refusal

DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu},
    "BOOL": torch.bool,
}
ALIGNED = 64
"""Bytes between the starts of two tensors in one piece of memory, as torch itself lays them."""


class WeightFiles:
    """All tensors of a folder by their names on disk. `read` counts what it brings: bytes, seconds, times a name."""

    def __init__(self, folder: Path):
        self._places: dict[str, tuple[Path, TensorHeader, int]] = {}
        for path in weight_files(folder):
            self._places |= {name: (path, header, begin) for name, (header, begin) in read_places(path).items()}
        self.seconds = 0.0
        self.bytes = 0
        self.times: Counter[str] = Counter()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def size(self, name: str) -> int:
        """Bytes of this tensor on disk."""
        header = self._places[name][1]
        return (header.count * BITS[header.dtype] + 7) // 8

    def read(self, together: Iterable[str], apart: Iterable[str] = ()) -> dict[str, Tensor]:
        """These tensors. Those `together` share one piece of memory, which goes when the last of them does.

        Raises:
            Conflict: If a file is shorter than its header said.
            Refusal: If a tensor is of a type that torch does not have.
        """
        start, names = time.perf_counter(), list(together)
        ends = [0]
        for name in names:
            ends.append(ends[-1] + -(-self.size(name) // ALIGNED) * ALIGNED)
        piece = torch.empty(ends[-1], dtype=torch.uint8)
        room = {name: piece[at : at + self.size(name)] for name, at in zip(names, ends, strict=False)}
        room |= {name: self._as_mapped(name) for name in apart}
        with ExitStack() as stack:
            files: dict[Path, int] = {}
            for name in sorted(room, key=lambda each: (self._places[each][0], self._places[each][2])):
                path = self._places[name][0]
                if path not in files:
                    files[path] = os.open(path, os.O_RDONLY)
                    stack.callback(os.close, files[path])
                self._fill(room[name], files[path], name)
        self.seconds += time.perf_counter() - start
        return {name: self._shaped(name, flat) for name, flat in room.items()}

    def _as_mapped(self, name: str) -> Tensor:
        """Room that begins as far from a multiple of 64 bytes as in the file.

        There a mapping of the file has it, which is what transformers runs on; and matrix products of the processor may
        round differently, by where a matrix begins.
        """
        size, header = self.size(name), self._places[name][1]
        off = self._places[name][2] % ALIGNED
        off = 0 if off % max(BITS[header.dtype] // 8, 1) else off
        return torch.empty(size + off, dtype=torch.uint8)[off:]

    def _fill(self, flat: Tensor, file: int, name: str) -> None:
        path, _, at = self._places[name]
        view, done = flat.numpy().data, 0
        while done < len(view):
            got = os.preadv(file, [view[done:]], at + done)
            if not got:
                raise Conflict(f"{path} ends inside {name}: it changed while it was read; ask again.")
            done += got
        self.bytes += len(view)
        self.times[name] += 1

    def _shaped(self, name: str, flat: Tensor) -> Tensor:
        path, header, _ = self._places[name]
        if header.dtype not in DTYPES:
            raise Refusal(
                f"{name} in {path} is of type {header.dtype}, which cannot be read a layer at a time; "
                f"these can: {', '.join(DTYPES)}."
            )
        return flat.view(DTYPES[header.dtype]).view(header.shape)
