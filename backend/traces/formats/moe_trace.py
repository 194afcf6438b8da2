"""llama.cpp's moe-trace: one `layer,expert` a line, with no sign of where a token ends, so counts alone."""

from __future__ import annotations

import csv

import numpy as np

from backend.errors import Refusal
from backend.traces.counting import counts
from backend.traces.draft import ALL, Draft
from backend.traces.file import File
from backend.traces.options import Options

TITLE = "one `layer,expert` a line, as llama.cpp's moe-trace writes"
HEADER = ["layer", "expert"]


def fits(file: File) -> bool:
    """A CSV of two columns; without a header it may as well be the counts of two experts."""
    if file.suffix != ".csv":
        return False
    try:
        with file.path.open(encoding="utf-8-sig", newline="") as text:
            first = next((row for row in csv.reader(text) if row), [])
    except (UnicodeDecodeError, csv.Error):
        return False
    return _cells(first) == HEADER or (len(first) == 2 and all(cell.strip().isdecimal() for cell in first))


def read(file: File, options: Options) -> Draft:
    """Selections counted by layer and expert; layers may skip the dense ones, whose numbers they keep."""
    if options.experts is None:
        raise Refusal(f"{file.name} does not say how many experts a layer has; give --experts.", asks="experts")
    pairs = _pairs(file)
    layers, row = np.unique(pairs[:, 0], return_inverse=True)
    over = np.flatnonzero(pairs[:, 1] >= options.experts)
    if len(over):
        layer, expert = pairs[over[0]]
        raise Refusal(f"{file.name}: expert {expert} in layer {layer}; ids are 0 to {options.experts - 1} (--experts).")
    cells = np.bincount(row * options.experts + pairs[:, 1], minlength=len(layers) * options.experts)
    matrix = cells.reshape(len(layers), options.experts)
    return counts(file.name, {ALL: matrix}, options, [str(layer) for layer in layers])


def _pairs(file: File) -> np.ndarray:
    found: list[tuple[int, int]] = []
    try:
        with file.path.open(encoding="utf-8-sig", newline="") as text:
            for line, row in enumerate(csv.reader(text), 1):
                # Traces of several prompts are joined by hand, headers and all.
                if not row or _cells(row) == HEADER:
                    continue
                if len(row) != 2 or not all(cell.strip().isdecimal() for cell in row):
                    raise Refusal(f"{file.name}, line {line} is {','.join(row)!r}; it must be LAYER,EXPERT.")
                found.append((int(row[0]), int(row[1])))
    except UnicodeDecodeError as error:
        raise Refusal(f"{file.name} is no UTF-8 (byte {error.start}).") from error
    except csv.Error as error:
        raise Refusal(f"{file.name} is no CSV: {error}.") from error
    if not found:
        raise Refusal(f"{file.name} names no expert.")
    return np.array(found, dtype=np.int64)


def _cells(row: list[str]) -> list[str]:
    return [cell.strip().lower() for cell in row]
