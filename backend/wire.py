"""An answer's ways out of the house and back: JSON, Arrow, and files (CSV, Parquet, npy, LaTeX).

Arrow is the bulk form, on the wire and in the store: `values` (float64, C order) beside the bounds and the null, which
is broadcast to every row; the schema's metadata holds the answer without its arrays, so nothing of it is lost.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from analysis.result import Axis, Interval, Null, Reason, Result
from backend.errors import Refusal
from backend.latex import to_latex

ARROW_STREAM = "application/vnd.apache.arrow.stream"
HEADER = b"answer"
FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "npy": "application/x-npy",
    "tex": "application/x-tex; charset=utf-8",
}
_NOTHING = np.empty(0)


@dataclass(frozen=True)
class Told:
    """A result with its provenance, as it travels."""

    result: Result
    provenance: Mapping[str, Any]


def to_json(result: Result, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The ANSWER object of the API; non-finite numbers as strings."""
    return result.to_json() | {"provenance": dict(provenance)}


def from_json(data: Mapping[str, Any]) -> Told:
    """The inverse of `to_json`, bit for bit."""
    return Told(Result.from_json(data), data["provenance"])


def to_arrow(result: Result, provenance: Mapping[str, Any]) -> bytes:
    """The answer as one Arrow IPC stream."""
    columns = {"values": result.values, **_arrays(result)}
    shape = np.shape(result.values)
    header = to_json(_hollow(result), provenance) | {"shape": list(shape)}
    header["array_shapes"] = {name: list(np.shape(array)) for name, array in columns.items()}
    flat = {name: pa.array(_full(array, shape).ravel()) for name, array in columns.items()}
    metadata = {HEADER: json.dumps(header, allow_nan=False).encode()}
    table = pa.table(flat).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_arrow(data: bytes) -> Told:
    """The inverse of `to_arrow`, bit for bit."""
    table = pa.ipc.open_stream(data).read_all()
    header = json.loads((table.schema.metadata or {})[HEADER])
    shape = tuple(header["shape"])
    arrays = {
        name: _narrow(table.column(name).to_numpy().reshape(shape), tuple(size))
        for name, size in header["array_shapes"].items()
    }
    told = from_json(header)
    result = replace(told.result, values=arrays["values"])
    if isinstance(result.null, Null):
        bounds = {part: arrays[f"null_{part}"] for part in ("mean", "low", "high", "p") if f"null_{part}" in arrays}
        result = replace(result, null=replace(result.null, **bounds))
    if isinstance(result.interval, Interval):
        bounds = {part: arrays[f"interval_{part}"] for part in ("low", "high")}
        result = replace(result, interval=replace(result.interval, **bounds))
    return Told(result, told.provenance)


def to_file(result: Result, provenance: Mapping[str, Any], kind: str) -> bytes:
    """The answer as a file: `csv` and `parquet` one row a cell with labels, `npy` the bare values, `tex` a table."""
    if kind == "npy":
        sink = io.BytesIO()
        np.save(sink, np.asarray(result.values, dtype=np.float64), allow_pickle=False)
        return sink.getvalue()
    if kind == "tex":
        return to_latex(result, provenance).encode()
    if kind not in FORMATS:
        raise Refusal(f"There is no format {kind!r}; known: {', '.join(sorted(FORMATS))}.", known=sorted(FORMATS))
    table = long_table(result)
    if kind == "csv":
        return _csv(table)
    header = json.dumps(to_json(_hollow(result), provenance), allow_nan=False)
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table.replace_schema_metadata({HEADER: header}), sink)
    return sink.getvalue().to_pybytes()


def long_table(result: Result) -> pa.Table:
    """One row per cell: a label per axis, then `value`, `low`, `high`, `null_mean`, `null_low`, `null_high`.

    Where cases have a corrected p, it stands last, as `p`.
    """
    shape = np.shape(result.values)
    columns: dict[str, pa.Array] = dict(zip(axis_columns(result.axes), label_columns(result.axes, shape), strict=True))
    arrays = {"value": result.values, **_arrays(result)}
    for name in ("value", "interval_low", "interval_high", "null_mean", "null_low", "null_high"):
        array = arrays.get(name)
        size = int(np.prod(shape))
        column = pa.nulls(size, pa.float64()) if array is None else pa.array(_full(array, shape).ravel())
        columns[name.removeprefix("interval_")] = column
    if "null_p" in arrays:
        columns["p"] = pa.array(_full(arrays["null_p"], shape).ravel())
    return pa.table(columns)


def axis_columns(axes: tuple[Axis, ...]) -> list[str]:
    """A column name per axis; a repeated or reserved name gets its position."""
    taken = {"value", "low", "high", "null_mean", "null_low", "null_high", "p"}
    names = []
    for position, axis in enumerate(axes, start=1):
        name = f"{axis.name}_{position}" if axis.name in taken else axis.name
        taken.add(name)
        names.append(name)
    return names


def label_columns(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> list[pa.Array]:
    """For every axis its label at each cell, in C order."""
    columns = []
    for dimension, axis in enumerate(axes):
        positions = np.broadcast_to(_along(np.arange(shape[dimension]), dimension, len(shape)), shape)
        columns.append(pa.array(list(axis.labels), pa.string()).take(pa.array(positions.ravel())))
    return columns


def _along(vector: np.ndarray, dimension: int, dimensions: int) -> np.ndarray:
    return vector.reshape([-1 if d == dimension else 1 for d in range(dimensions)])


def _arrays(result: Result) -> dict[str, np.ndarray]:
    arrays = {}
    if isinstance(result.interval, Interval):
        arrays |= {"interval_low": result.interval.low, "interval_high": result.interval.high}
    if isinstance(result.null, Null):
        arrays |= {"null_mean": result.null.mean, "null_low": result.null.low, "null_high": result.null.high}
        arrays |= {} if result.null.p is None else {"null_p": result.null.p}
    return arrays


def _hollow(result: Result) -> Result:
    null, interval = result.null, result.interval
    return replace(
        result,
        values=_NOTHING,
        null=null if isinstance(null, Reason) else Null(_NOTHING, _NOTHING, _NOTHING, null.how),
        interval=interval if isinstance(interval, Reason) else replace(interval, low=_NOTHING, high=_NOTHING),
    )


def _full(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.asarray(array, dtype=np.float64), shape)


def _narrow(array: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Undo a broadcast from `size`: the first cell along every axis that was stretched."""
    if not array.size:
        return array  # nothing was stretched to nothing: there is no first cell
    padded = (1,) * (array.ndim - len(size)) + size
    first = tuple(slice(0, n) for n in padded)
    return np.asarray(array[first]).reshape(size)


def _csv(table: pa.Table) -> bytes:
    """NaN is written as a word, and only what was not asked is empty (pyarrow's own writer quotes all of it)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    columns = [[_word(value) for value in table.column(name).to_pylist()] for name in table.column_names]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _word(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else "NaN" if value != value else repr(value)
