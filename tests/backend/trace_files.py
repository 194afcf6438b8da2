"""Small trace files by hand: GGUF, server responses, and a store to import them into."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from analysis.result import Result
from backend.checkpoints import Checkpoint
from backend.errors import Refusal
from backend.prompts import PromptSet
from backend.question import ask
from backend.services import Services, open_services
from backend.settings import Settings
from backend.traces import Options, read
from tests.backend.inline import InlineRunner

Bad = dict[str, tuple[str, Any, dict[str, Any], str]]
"""Bad files: name, content, options, and what the refusal has to say."""

CHOSEN = [[[0, 2], [1, 2]], [[3, 0], [2, 1]], [[1, 2], [1, 2]], [[0, 3], [2, 1]]]
"""Four tokens, two layers of four experts, two a token."""


@dataclass(frozen=True)
class Bench:
    """An opened store with everything in this process."""

    services: Services
    runner: InlineRunner

    def add(self, path: Path, name: str, prompts: PromptSet | None = None, **said: Any) -> Checkpoint:
        return self.services.traces.add(path, name, Options.said(said), prompts)

    def ask(self, measure: str, *names: str, prompts: str | None = None, **knobs: Any) -> Result:
        found = [self.services.checkpoints.find(name) for name in names]
        of = self.services.prompts.find(prompts or found[0].prompts or "")
        return self.services.answering.answer(ask(measure, found, of, knobs)).result


@contextmanager
def bench(settings: Settings) -> Iterator[Bench]:
    runner = InlineRunner(settings.store)
    with open_services(settings, runner) as services:
        yield Bench(services, runner)


def written(path: Path, content: Any) -> Path:
    """Bytes, text, an array, named arrays, or anything that JSON can say; by the type of the content."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        path.write_text(json.dumps(content))
    return path


def npy(array: np.ndarray) -> str:
    """As a server sends it: the base64 of a .npy."""
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


def gguf(facts: Mapping[str, str | int], tensors: Mapping[str, np.ndarray], version: int = 3) -> bytes:
    """Float32 tensors and facts, by the format's own description."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(facts))
    for name, value in facts.items():
        head += _text(name)
        head += struct.pack("<I", 8) + _text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
    at, data = 0, b""
    for name, tensor in tensors.items():
        head += _text(name) + struct.pack("<I", tensor.ndim)
        head += b"".join(struct.pack("<Q", size) for size in tensor.shape[::-1]) + struct.pack("<IQ", 0, at)
        piece = tensor.astype("<f4").tobytes()
        piece += b"\0" * (-len(piece) % 32)
        data, at = data + piece, at + len(piece)
    return head + b"\0" * (-len(head) % 32) + data


def imatrix(
    layers: Mapping[int, np.ndarray],
    sums: Mapping[int, np.ndarray] | None = None,
    squares: Mapping[int, np.ndarray] | None = None,
    **more: Any,
) -> bytes:
    """An importance matrix of these counts a layer, with sums of inputs and of their squares where given."""
    facts = {"general.type": "imatrix", "imatrix.chunk_count": 1, "imatrix.chunk_size": 10} | more
    tensors: dict[str, np.ndarray] = {}
    for layer, counts in layers.items():
        for part in ("gate", "up", "down"):
            tensors[f"blk.{layer}.ffn_{part}_exps.weight.counts"] = counts[:, None]
        name = f"blk.{layer}.ffn_gate_exps.weight"
        wide = np.ones((len(counts), sums[layer].shape[1] if sums else 3)) * (counts[:, None] > 0)
        tensors[f"{name}.in_sum2"] = squares[layer] if squares else wide
        if sums:
            tensors[f"{name}.in_sum"] = sums[layer]
    return gguf(facts, tensors)


def objects(**arrays: Any) -> bytes:
    """A .npy (of that name), else a .npz; an array of objects becomes a pickle."""
    file = io.BytesIO()
    if list(arrays) == ["npy"]:
        np.save(file, arrays["npy"], allow_pickle=True)
    else:
        np.savez(file, **arrays)
    return file.getvalue()


def cut(content: bytes, rest: int = 9) -> bytes:
    """Without its end."""
    return content[:-rest]


def parquet(**columns: Any) -> bytes:
    """A file of these columns, with `metadata` in its schema."""
    metadata = columns.pop("metadata", {})
    file = io.BytesIO()
    table = pa.table(columns)
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), file)
    return file.getvalue()


def rows(prompts: Mapping[str, Sequence[Sequence[Sequence[int]]]], **columns: Any) -> list[dict[str, Any]]:
    """Rows as `export routes` writes them, of ids [token, layer, k] by prompt."""
    return [
        {"prompt": name, "position": position, "layer": str(layer), "expert": expert, **columns}
        for name, tokens in prompts.items()
        for position, layers in enumerate(tokens)
        for layer, chosen in enumerate(layers)
        for expert in chosen
    ]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def refused(folder: Path, case: tuple[str, Any, dict[str, Any], str]) -> None:
    """The file is refused with this sentence, in which its name stands."""
    name, content, said, sentence = case
    with pytest.raises(Refusal, match=re.escape(sentence)) as told:
        read(written(folder / name, content), Options.said(said))
    assert name in str(told.value) or "--format" in sentence
