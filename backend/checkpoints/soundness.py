"""Whether loaded weights can be computed with: what is wrong is named by file and tensor, and no figure is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from backend.checkpoints.headers import read_header, weight_files
from backend.errors import Refusal


def check_shapes(mismatched: Iterable[Any], folder: Path, name: str) -> None:
    """Raises `Refusal` for a tensor whose shape is not what the config says; rows as transformers reports them."""
    for tensor, found, wanted in sorted(mismatched, key=lambda row: row[0]):
        raise Refusal(
            f"{_file_of(tensor, folder)} of {name} holds {tensor} with shape {list(found)}, where its config.json asks "
            f"for {list(wanted)}: config and weights are not of one model. Copy both again, from one place."
        )


def check_finite(model: Any, folder: Path, name: str) -> None:
    """Raises `Refusal` where a parameter holds a number that is none; the file is searched only then."""
    for parameter, values in model.named_parameters():
        if values.is_meta or not values.numel() or _finite(values):
            continue
        file, tensor, wrong, count = next(_not_finite(folder), ("a file", parameter, 0, values.numel()))
        raise Refusal(
            f"{file} of {name} holds {wrong:,} numbers that are NaN or infinite among the {count:,} of {tensor}: every "
            "figure would be made of them. The training diverged or the file was damaged; take an earlier step, or "
            "copy the file again."
        )


def _finite(values: Any) -> bool:
    """In one pass without a copy: NaN is handed on, and what is infinite is the least or the largest."""
    import torch

    small = values.is_floating_point() and values.dtype.itemsize == 1  # of 8 bits none has an order in torch
    return all(bool(end.isfinite()) for end in torch.aminmax(values.float() if small else values))


def _not_finite(folder: Path) -> Iterator[tuple[str, str, int, int]]:
    """The tensors of the files, as stored, with such numbers: a parameter of the model may be made of many of them."""
    import torch
    from safetensors import safe_open

    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for tensor in sorted(file.keys()):
                values = file.get_tensor(tensor)
                wrong = int((~torch.isfinite(values.float())).sum()) if values.is_floating_point() else 0
                if wrong:
                    yield path.name, tensor, wrong, values.numel()


def _file_of(tensor: str, folder: Path) -> str:
    found = (path.name for path in weight_files(folder) if tensor in read_header(path))
    return next(found, "a file")
