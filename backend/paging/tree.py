"""What a layer takes and gives, as tensors and plain values: kept on disk, handed back, compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, str, type(None))


class Unkeepable(ValueError):
    """Raised where a layer gives something that is neither tensors nor plain values in tuples, lists and tables."""


def packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, its tensors moved into `tensors` under names that the JSON mentions."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()  # several may be views of one: files hold copies
        return {"tensor": name}
    if isinstance(value, PLAIN):
        return {"plain": value}
    if type(value) in (tuple, list):
        return {type(value).__name__: [packed(each, tensors) for each in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"table": {key: packed(each, tensors) for key, each in value.items()}}
    raise Unkeepable(f"a layer gives a {type(value).__name__}")


def unpacked(told: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """What `packed` was given."""
    [(kind, held)] = told.items()
    if kind == "tensor":
        return tensors[held].to(device)
    if kind in ("tuple", "list"):
        made = [unpacked(each, tensors, device) for each in held]
        return tuple(made) if kind == "tuple" else made
    return {key: unpacked(each, tensors, device) for key, each in held.items()} if kind == "table" else held


def digest(value: Any) -> str:
    """SHA-256 over every bit of the tensors in it and every plain value; of other things, only what they are."""
    found = hashlib.sha256()
    _digest(value, found)
    return found.hexdigest()


def _digest(value: Any, found: Any) -> None:
    if isinstance(value, Tensor):
        found.update(json.dumps([str(value.dtype), list(value.shape)]).encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    elif isinstance(value, tuple | list):
        found.update(f"{len(value)}(".encode())
        for each in value:
            _digest(each, found)
    elif isinstance(value, dict):
        found.update(f"{len(value)}{{".encode())
        for key, each in value.items():
            found.update(repr(key).encode())
            _digest(each, found)
    else:
        found.update((repr(value) if isinstance(value, PLAIN) else type(value).__name__).encode())
