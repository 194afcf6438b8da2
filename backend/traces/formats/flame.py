"""FLAME-MoE's traces: a folder of one iteration with a Parquet file a layer, rows aligned over layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from backend.errors import Refusal
from backend.prompts.check import UNCATEGORISED
from backend.traces.draft import ALL, Draft
from backend.traces.file import File
from backend.traces.options import Options
from backend.traces.routing import Tokens, check_size, routes

TITLE = "FLAME-MoE: `indices` and `scores` lists, a folder of layer_NN.parquet or one of them"
SCORES = "its scores, as they were logged, are taken as combine weights"
_LAYER = re.compile(r"layer_(\d+)\.parquet")


def fits(file: File) -> bool:
    """A folder with such files, or a file with such a column."""
    return bool(_layers(file)) if file.path.is_dir() else "indices" in file.columns


def read(file: File, options: Options) -> Draft:
    """One prompt, or one a window: these files tell no prompts apart."""
    layers = _layers(file) if file.path.is_dir() else {_number(file.path): file.path}
    if not layers:
        raise Refusal(f"{file.name} holds no layer_NN.parquet.")
    check_size(file.name, sum(File(path).values("indices") for path in layers.values()), options)
    read = {number: _layer(File(path)) for number, path in sorted(layers.items())}
    first = next(iter(read))
    for number, (indices, _) in read.items():
        if indices.shape != read[first][0].shape:
            raise Refusal(
                f"{file.name}: layer {number} has {len(indices)} rows of {indices.shape[1]} experts and layer {first} "
                f"{len(read[first][0])} of {read[first][0].shape[1]}; all are of the same tokens."
            )
    indices = np.stack([found for found, _ in read.values()], 1)
    scores = [score for _, score in read.values()]
    known = [score for score in scores if score is not None]
    weights = np.stack(known, 1) if len(known) == len(scores) else None
    tokens = _tokens(file.path, len(indices))
    parts = _windows(indices, weights, tokens, options.window)
    draft = routes(file.name, parts, options, [str(number) for number in read])
    return draft if weights is None else replace(draft, notes=(*draft.notes, SCORES))


def _windows(
    indices: np.ndarray, weights: np.ndarray | None, tokens: np.ndarray | None, window: int | None
) -> list[Tokens]:
    starts = range(0, len(indices), window or max(len(indices), 1))
    parts = []
    for number, start in enumerate(starts):
        rows = slice(start, start + (window or len(indices)))
        name = f"window-{number}" if window else ALL
        given = (None if array is None else array[rows] for array in (weights, tokens))
        parts.append(Tokens(name, UNCATEGORISED, indices[rows], *given))
    return parts


def _layers(file: File) -> dict[int, Path]:
    found = ((_LAYER.fullmatch(path.name), path) for path in file.path.iterdir())
    return {int(match[1]): path for match, path in found if match}


def _number(path: Path) -> int:
    match = _LAYER.fullmatch(path.name)
    return int(match[1]) if match else 0


def _layer(file: File) -> tuple[np.ndarray, np.ndarray | None]:
    if "indices" not in file.columns:
        raise Refusal(f"{file.name} has no column `indices`; it has {', '.join(file.columns)}.")
    indices = _rectangular(file, "indices")
    if indices.dtype.kind not in "iu":
        raise Refusal(f"{file.name}: indices hold {indices.dtype}; they must be whole numbers.")
    scores = _rectangular(file, "scores") if "scores" in file.columns else None
    if scores is not None and scores.shape != indices.shape:
        raise Refusal(f"{file.name}: scores are {list(scores.shape)} and indices {list(indices.shape)}.")
    return indices, scores


def _rectangular(file: File, name: str) -> np.ndarray:
    column = file.table([name])[name].combine_chunks()
    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or column.null_count or not len(column):
        raise Refusal(
            f"{file.name}: column {name} is {kind} with {column.null_count} nulls; it must be lists of numbers."
        )
    values = column.flatten()
    if values.null_count or len(values) % len(column) or len(set(column.value_lengths().unique().to_pylist())) > 1:
        raise Refusal(f"{file.name}: the lists of column {name} have different lengths, or holes.")
    return values.to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _tokens(path: Path, rows: int) -> np.ndarray | None:
    """Token ids of the samples beside the iterations, where they are there."""
    folder = (path if path.is_dir() else path.parent).resolve().parent.parent / "samples"
    files = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    if not files:
        return None
    found = np.concatenate([File(each).table(["token_id"])["token_id"].to_numpy() for each in files])
    if len(found) != rows:
        raise Refusal(f"{folder} holds {len(found)} token ids, and the layers {rows} rows; they must be aligned.")
    return found
