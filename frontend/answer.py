"""A measure's answer as the pages hold it, decoded from the API's JSON or Arrow."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Axis:
    """A named axis of an answer; `groups` sorts its labels, for instance prompts into categories."""

    name: str
    labels: tuple[str, ...]
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Band:
    """Two bounds (null or interval), each broadcastable to the values, with the null's mean where there is one.

    `p` is that of each case of a null, corrected for all of them; its shape says which axes the cases are.
    `over_layers` are an interval's bounds of the mean over layers, where layers are all that the values have.
    """

    low: np.ndarray
    high: np.ndarray
    how: str
    mean: np.ndarray | None = None
    level: float = 0.95
    p: np.ndarray | None = None
    over_layers: tuple[float, float] | None = None

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Band:
        """The same band where the values have moved to."""
        mean, p = (None if part is None else move(part) for part in (self.mean, self.p))
        return replace(self, low=move(self.low), high=move(self.high), mean=mean, p=p)


@dataclass(frozen=True)
class Answer:
    """One measure's values, everything that must stand beside them, and where they came from."""

    measure: str
    values: np.ndarray
    axes: tuple[Axis, ...]
    unit: str
    null: Band | None
    null_reason: str
    interval: Band | None
    interval_reason: str
    caveats: tuple[str, ...]
    facts: Mapping[str, Any]
    tokens: int
    prompts: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The store's key of this answer."""
        return str(self.provenance.get("key", ""))


def decode_json(data: Mapping[str, Any]) -> Answer:
    """An answer from the API's JSON, where non-finite numbers are the strings NaN, Infinity and -Infinity."""
    null, interval = data["null"], data["interval"]
    bands = {}
    if "reason" not in null:
        p = _array(null["p"]) if "p" in null else None
        bands["null"] = Band(_array(null["low"]), _array(null["high"]), null["how"], _array(null["mean"]), p=p)
    if "reason" not in interval:
        bands["interval"] = _interval(interval, _array(interval["low"]), _array(interval["high"]))
    return _answer(data, _array(data["values"]), bands)


def decode_arrow(content: bytes) -> Answer:
    """An answer from an Arrow stream: flat columns, and everything else as JSON in the schema's metadata."""
    table = pa.ipc.open_stream(io.BytesIO(content)).read_all()
    data = json.loads(table.schema.metadata[b"answer"])
    shape = tuple(data["shape"])

    def column(name: str) -> np.ndarray:
        return table.column(name).to_numpy().astype(np.float64).reshape(shape)

    bands = {}
    if "null_low" in table.column_names:
        p = None
        if "null_p" in table.column_names:  # stretched over the values on the way: the axes of its cases are kept
            size = data["array_shapes"]["null_p"]
            p = column("null_p")[tuple(slice(0, n) for n in size)]
        bands["null"] = Band(column("null_low"), column("null_high"), data["null"]["how"], column("null_mean"), p=p)
    if "interval_low" in table.column_names:
        bands["interval"] = _interval(data["interval"], column("interval_low"), column("interval_high"))
    return _answer(data, column("values"), bands)


def _interval(told: Mapping[str, Any], low: np.ndarray, high: np.ndarray) -> Band:
    mean = told.get("over_layers")
    return Band(low, high, told["how"], level=told["level"], over_layers=tuple(mean) if mean else None)


def _answer(data: Mapping[str, Any], values: np.ndarray, bands: Mapping[str, Band]) -> Answer:
    return Answer(
        measure=data["measure"],
        values=values,
        axes=tuple(
            Axis(a["name"], tuple(map(str, a["labels"])), tuple(a["groups"]) if a.get("groups") else None)
            for a in data["axes"]
        ),
        unit=data["unit"],
        null=bands.get("null"),
        null_reason=data["null"].get("reason", ""),
        interval=bands.get("interval"),
        interval_reason=data["interval"].get("reason", ""),
        caveats=tuple(data["caveats"]),
        facts=dict(data["facts"]),
        tokens=data["tokens"],
        prompts=data["prompts"],
        provenance=data.get("provenance", {}),
    )


def _array(x: Any) -> np.ndarray:
    def numbers(item: Any) -> Any:
        return [numbers(i) for i in item] if isinstance(item, list) else float(item)

    return np.asarray(numbers(x), dtype=np.float64)
