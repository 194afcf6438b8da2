"""Bulk arrays as files named by the digest of their content: written whole or not at all, never changed after.

Worker processes write here too; only the row in the catalogue is the backend's. Needs no database.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.torch
import torch

from analysis.slots import Prompts, Shape
from analysis.statistic import State


@dataclass(frozen=True)
class Artifact:
    """A stored file: what it holds and where, relative to the store."""

    digest: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    path: str


class Arrays:
    """The folder of content-addressed files beside the catalogue."""

    def __init__(self, store: Path):
        self._store = store
        self._folder = store / "arrays"

    @property
    def unfinished(self) -> Path:
        """Where a long pass keeps what a killed one needs to go on; no catalogue knows of it."""
        return self._store / "unfinished"

    def put_array(self, array: np.ndarray) -> Artifact:
        """Keep an array as .npy."""
        with _Draft(self._folder) as draft:
            np.save(draft, array, allow_pickle=False)
            return self._settle(draft, "array", ".npy", str(array.dtype), array.shape)

    def put_state(self, state: State) -> Artifact:
        """Keep a statistic's state as .safetensors, with its shape and prompts in the header."""
        about = {"statistic": state.statistic, "shape": asdict(state.shape), "prompts": asdict(state.prompts)}
        tensors = {name: tensor.contiguous() for name, tensor in state.arrays.items()}
        data = safetensors.torch.save(tensors, metadata={"state": json.dumps(about)})
        return self.put_bytes(data, "state", ".safetensors")

    def put_bytes(self, data: bytes, kind: str, suffix: str) -> Artifact:
        """Keep bytes that are a file already."""
        with _Draft(self._folder) as draft:
            draft.write(data)
            return self._settle(draft, kind, suffix, "bytes", (len(data),))

    def get_array(self, artifact: Artifact) -> np.ndarray | None:
        """The array, memory-mapped and read-only; None if the file is gone."""
        path = self._store / artifact.path
        if not path.is_file():
            return None
        return np.load(path, mmap_mode="r" if artifact.shape else None, allow_pickle=False)

    def get_state(self, artifact: Artifact) -> State | None:
        """The state; None if the file is gone or damaged."""
        data = self.get_bytes(artifact)
        return None if data is None else read_state(data)

    def get_bytes(self, artifact: Artifact) -> bytes | None:
        """The file's bytes; None if it is gone or not what its name says."""
        path = self._store / artifact.path
        if not path.is_file():
            return None
        data = path.read_bytes()
        return data if hashlib.sha256(data).hexdigest() == artifact.digest else None

    def discard(self, artifact: Artifact) -> None:
        """Remove a damaged file, so that what it held counts as missing and is made anew."""
        (self._store / artifact.path).unlink(missing_ok=True)

    def _settle(self, draft: _Draft, kind: str, suffix: str, dtype: str, shape: tuple[int, ...]) -> Artifact:
        digest = draft.digest
        path = self._folder / digest[:2] / f"{digest}{suffix}"
        draft.move_to(path)
        return Artifact(digest, kind, dtype, tuple(shape), draft.size, str(path.relative_to(self._store)))


def read_state(data: bytes) -> State:
    """A state from the bytes of its file."""
    size = int.from_bytes(data[:8], "little")
    about: Mapping[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["state"])
    shape = about["shape"] | {"layers": tuple(about["shape"]["layers"])}
    prompts = Prompts(**{name: tuple(column) for name, column in about["prompts"].items()})
    arrays: dict[str, torch.Tensor] = safetensors.torch.load(data)
    return State(about["statistic"], Shape(**shape), prompts, arrays)


class _Draft:
    """A file in the making: hashed as it is written, gone unless moved to its place."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.NamedTemporaryFile(dir=folder, prefix="draft-", delete=False)
        self._path = Path(self._file.name)
        self._hash = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> _Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        self._hash.update(data)
        self.size += memoryview(data).nbytes
        return self._file.write(data)

    def move_to(self, path: Path) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        path.parent.mkdir(exist_ok=True)
        # Over a file of the same name on purpose: same digest, same content, and a damaged one is mended.
        self._path.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
