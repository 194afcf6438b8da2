"""The header of a safetensors file, read without its weights.

8 bytes of length, then JSON with dtype, shape and offsets of each tensor.
Format: github.com/huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import Refusal

BITS = {
    **{name: 64 for name in ("F64", "I64", "U64", "C64")},
    **{name: 32 for name in ("F32", "I32", "U32")},
    **{name: 16 for name in ("F16", "BF16", "I16", "U16")},
    **{name: 8 for name in ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL")},
    **{name: 6 for name in ("F6_E2M3", "F6_E3M2")},
    "F4": 4,
}
"""Bits per number of each dtype name."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""How transformers calls the weights: one file, or the index of several."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

_MOST = 100_000_000
"""The format's own cap on a header's bytes."""


@dataclass(frozen=True)
class TensorHeader:
    """One tensor of a file, unread."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """All tensors of a folder's `model.safetensors`, or of the shards its index names; raises `Refusal`."""
    held = {path.name: read_header(path) for path in weight_files(folder)}
    tensors = {name: header for file in held.values() for name, header in file.items()}
    if not tensors:
        raise Refusal(f"The safetensors files of {folder} hold no tensor.")
    if (folder / INDEX).is_file():
        for name, file in shard_map(folder / INDEX).items():
            if name not in held[file]:
                where = next((other for other, names in held.items() if name in names), "no file of the folder")
                raise Refusal(
                    f"{folder / INDEX} says that {name} is in {file}, which does not hold it ({where} does). Copy or "
                    "download the index and its shards again, all of one version."
                )
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files a model in this folder is made of; raises `Refusal` if one is missing."""
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise _no_weights(folder)
        return [folder / SINGLE]
    names = sorted(set(shard_map(folder / INDEX).values()))
    for name in names:
        if not (folder / name).is_file():
            raise Refusal(
                f"{folder / INDEX} names the shard {name}, which is not in the folder; copy all {len(names)} shards."
            )
    return [folder / name for name in names]


def shard_map(index: Path) -> dict[str, str]:
    """From tensor to shard, as an index says; raises `Refusal` if it is none."""
    try:
        found = json.loads(index.read_text("utf-8"))["weight_map"]
        names = sorted(set(found.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(
            f"{index} is no index of shards: it must be JSON with a `weight_map` from tensor to file."
        ) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise Refusal(f"{index} names the shard {name!r}; a shard must be a file name in the same folder.")
    return found


def read_header(path: Path) -> dict[str, TensorHeader]:
    """The tensors of one file; raises `Refusal` where the file is cut off or no safetensors."""
    return {name: tensor for name, (tensor, _) in read_places(path).items()}


def read_places(path: Path) -> dict[str, tuple[TensorHeader, int]]:
    """The same, each with the byte of the file at which its numbers begin."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= _MOST:
            raise Refusal(f"{path} is no safetensors file: it does not start with the length of a header.")
        if 8 + length > size:
            raise Refusal(
                f"{path} is cut off inside its header: {8 + length:,} bytes announced, {size:,} there. {_AGAIN}"
            )
        try:
            entries = json.loads(file.read(length))
            tensors = {name: _entry(entry) for name, entry in entries.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refusal(f"{path} has a broken header, so it is no safetensors file ({error}).") from error
    end = 8 + length + max((stop for _, _, stop in tensors.values()), default=0)
    if end != size:
        verb = "cut off" if size < end else "too long"
        raise Refusal(f"{path} is {verb}: its header announces {end:,} bytes, {size:,} are there. {_AGAIN}")
    return {name: (tensor, 8 + length + begin) for name, (tensor, begin, _) in tensors.items()}


_AGAIN = "Copy or download the file again."


def _entry(entry: dict[str, Any]) -> tuple[TensorHeader, int, int]:
    tensor = TensorHeader(entry["dtype"], tuple(int(n) for n in entry["shape"]))
    begin, end = entry["data_offsets"]
    if tensor.dtype not in BITS:
        raise ValueError(f"dtype {tensor.dtype!r} is not known")
    if min(tensor.shape, default=0) < 0 or end - begin != (tensor.count * BITS[tensor.dtype] + 7) // 8 or begin < 0:
        raise ValueError(f"offsets {begin} to {end} do not fit {tensor.dtype} {list(tensor.shape)}")
    return tensor, begin, end


def _no_weights(folder: Path) -> Refusal:
    names = sorted(p.name for p in folder.iterdir())
    pickles = [n for n in names if n.endswith(PICKLES)]
    if pickles:
        return Refusal(
            f"{folder} holds {pickles[0]}, a pickle, which can run code when it is opened; only safetensors are read. "
            f"If you trust it, {conversion(str(folder), f'{folder}-safetensors')}"
        )
    others = [n for n in names if n.endswith(".safetensors")]
    if others:
        return Refusal(
            f"{folder} holds {others[0]}, but neither model.safetensors nor model.safetensors.index.json, which say "
            "what the model is made of."
        )
    return Refusal(f"{folder} holds no weights: no model.safetensors among {named(names)}.")


def conversion(source: str, target: str) -> str:
    """The command that makes safetensors of pickles."""
    return (
        f'convert it: python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{source}').save_pretrained('{target}')\""
    )


def named(names: list[str], most: int = 8) -> str:
    """File names in a sentence, the first few of them."""
    if not names:
        return "nothing (the folder is empty)"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
