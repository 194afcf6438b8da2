"""Count matrices [layers, experts]: .npy, .json or .csv, of one text or of several."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np

from backend.errors import Refusal
from backend.traces.counting import counts
from backend.traces.draft import ALL, Draft
from backend.traces.file import File, numbers
from backend.traces.options import Options

TITLE = "how often each expert was chosen, [layers, experts], as .npy, .json or .csv"


def fits(file: File) -> bool:
    """A matrix, a stack of them, or an object with `counts`."""
    if file.suffix == ".csv":
        return not _is_long(_rows(file))
    if isinstance(file.json, dict):
        return "counts" in file.json
    return file.array is not None and file.array.ndim in (2, 3)


def read(file: File, options: Options) -> Draft:
    """One prompt for one matrix; of a stack [prompts, layers, experts], or of named matrices, one each."""
    if file.suffix == ".csv":
        matrix, labels = _table(file)
        return counts(file.name, {ALL: matrix}, options, labels)
    if isinstance(file.json, dict):
        return _object(file, file.json, options)
    if file.array is None:
        raise Refusal(f"{file.name} holds no array of counts; known are .npy, .json and .csv.")
    return counts(file.name, _matrices(file.array, file.name), options)


def _object(file: File, about: dict[str, Any], options: Options) -> Draft:
    """`{"counts": matrix or {name: matrix}, "k": 8, "layers": ["0", "7"]}`."""
    given, labels, k = about.get("counts"), about.get("layers"), about.get("k")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise Refusal(f"{file.name}: k is {k!r}; it must be a whole number of 1 or more.")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(n, int | str) for n in labels)):
        raise Refusal(f"{file.name}: layers is {labels!r}; it must be a list of their numbers in the model.")
    if given is None:
        raise Refusal(f"{file.name} has no `counts`; it has {', '.join(map(repr, about)) or 'nothing'}.")
    if isinstance(given, dict):
        matrices = {name: numbers(matrix, file.name, f"counts[{name!r}]") for name, matrix in given.items()}
    else:
        matrices = _matrices(numbers(given, file.name, "counts"), file.name)
    return counts(file.name, matrices, options, None if labels is None else [str(n) for n in labels], k=k)


def _matrices(array: np.ndarray, where: str) -> dict[str, np.ndarray]:
    if array.ndim == 3:
        return {f"row-{row}": matrix for row, matrix in enumerate(array)}
    if array.ndim != 2:
        raise Refusal(f"{where}: counts have shape {list(array.shape)}; they must be [layers, experts].")
    return {ALL: array}


def _rows(file: File) -> list[list[str]]:
    try:
        with file.path.open(encoding="utf-8-sig", newline="") as text:
            return [row for row in csv.reader(text) if any(cell.strip() for cell in row)]
    except UnicodeDecodeError as error:
        raise Refusal(f"{file.name} is no UTF-8 (byte {error.start}).") from error
    except csv.Error as error:
        raise Refusal(f"{file.name} is no CSV: {error}.") from error


def _is_long(rows: list[list[str]]) -> bool:
    """Whether each row names an expert, rather than counting them all."""
    return bool(rows) and "expert" in [cell.strip().lower() for cell in rows[0]]


def _table(file: File) -> tuple[np.ndarray, list[str] | None]:
    """Rows are layers. A header is passed over; if it begins with `layer`, so does each row with its number."""
    rows = _rows(file)
    if not rows:
        raise Refusal(f"{file.name} is empty.")
    header = rows[0] if not all(map(_is_number, rows[0])) else None
    first = 2 if header else 1
    body = rows[1:] if header else rows
    labelled = header is not None and header[0].strip().lower() == "layer"
    matrix = []
    for line, row in enumerate(body, first):
        if len(row) != len(rows[0]):
            raise Refusal(f"{file.name}, row {line} has {len(row)} cells and row 1 {len(rows[0])}. Was it cut short?")
        cells = row[1:] if labelled else row
        bad = next((cell for cell in cells if not _is_number(cell)), None)
        if bad is not None:
            raise Refusal(f"{file.name}, row {line}: {bad!r} is no count.")
        matrix.append([float(cell) for cell in cells])
    if not matrix:
        raise Refusal(f"{file.name} has a header and no counts.")
    return np.array(matrix), [row[0].strip() for row in body] if labelled else None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
