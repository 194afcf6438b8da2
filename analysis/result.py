"""What a measure answers: values with named axes, unit, null, interval, caveats. Frozen, and honest as JSON.

Non-finite numbers travel as the strings "NaN", "Infinity", "-Infinity": JSON has no word for them, and null would say
"nothing was asked" where NaN says "asked, and undefined".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Axis:
    """A named axis; `groups` (same length) sorts its labels, e.g. prompts into categories."""

    name: str
    labels: tuple[str, ...]
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Null:
    """Where chance lies: mean and central 95 % band, each broadcastable to the values, and how it was drawn.

    `p` is that of each case (a layer, a prompt, a cell), corrected for all of them, where the measure has one.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    how: str
    p: np.ndarray | None = None


@dataclass(frozen=True)
class Interval:
    """Uncertainty of the values, each bound of their shape.

    `over_layers` bounds the mean over layers, where layers are all that the values have: prompts that move one layer
    move the others, so it follows from no layer's own bounds.
    """

    low: np.ndarray
    high: np.ndarray
    level: float
    how: str
    over_layers: tuple[float, float] | None = None


@dataclass(frozen=True)
class Reason:
    """Why a null or an interval is absent."""

    reason: str


@dataclass(frozen=True)
class Result:
    """A measure's answer. `tokens` and `prompts` count what it is made of (0 where it reads weights only).

    `facts` are single numbers that belong to the answer (trustworthiness, pairs used, dead experts). `arrays` are what
    the values were made from, by name: too large to travel with them, and no part of the JSON.
    """

    measure: str
    values: np.ndarray
    axes: tuple[Axis, ...]
    unit: str
    null: Null | Reason
    interval: Interval | Reason
    caveats: tuple[str, ...] = ()
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    tokens: int = 0
    prompts: int = 0
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and strings, for `json.dumps`."""
        null, interval = self.null, self.interval
        return {
            "measure": self.measure,
            "values": _plain(self.values),
            "axes": [
                {"name": a.name, "labels": list(a.labels)} | ({"groups": list(a.groups)} if a.groups else {})
                for a in self.axes
            ],
            "unit": self.unit,
            "null": {"reason": null.reason}
            if isinstance(null, Reason)
            else {name: _plain(getattr(null, name)) for name in ("mean", "low", "high", "how")}
            | ({} if null.p is None else {"p": _plain(null.p)}),
            "interval": {"reason": interval.reason}
            if isinstance(interval, Reason)
            else {
                "low": _plain(interval.low),
                "high": _plain(interval.high),
                "level": interval.level,
                "how": interval.how,
            }
            | ({} if interval.over_layers is None else {"over_layers": list(interval.over_layers)}),
            "caveats": list(self.caveats),
            "facts": {k: _plain(v) for k, v in self.facts.items()},
            "tokens": self.tokens,
            "prompts": self.prompts,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The inverse of `to_json`, bit for bit."""
        null, interval = data["null"], data["interval"]
        return cls(
            measure=data["measure"],
            values=_array(data["values"]),
            axes=tuple(
                Axis(a["name"], tuple(a["labels"]), tuple(a["groups"]) if "groups" in a else None) for a in data["axes"]
            ),
            unit=data["unit"],
            null=Reason(null["reason"])
            if "reason" in null
            else Null(
                _array(null["mean"]),
                _array(null["low"]),
                _array(null["high"]),
                null["how"],
                _array(null["p"]) if "p" in null else None,
            ),
            interval=Reason(interval["reason"])
            if "reason" in interval
            else Interval(
                _array(interval["low"]),
                _array(interval["high"]),
                interval["level"],
                interval["how"],
                tuple(interval["over_layers"]) if "over_layers" in interval else None,
            ),
            caveats=tuple(data["caveats"]),
            facts={k: _number(v) for k, v in data["facts"].items()},
            tokens=data["tokens"],
            prompts=data["prompts"],
        )


def _plain(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return _plain(x.tolist())
    if isinstance(x, list):
        return [_plain(item) for item in x]
    if isinstance(x, float | np.floating) and not math.isfinite(x):
        return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"
    return x.item() if isinstance(x, np.generic) else x


def _number(x: Any) -> Any:
    return float(x) if x in ("NaN", "Infinity", "-Infinity") else x


def _array(x: Any) -> np.ndarray:
    def numbers(item: Any) -> Any:
        return [numbers(i) for i in item] if isinstance(item, list) else _number(item)

    return np.asarray(numbers(x), dtype=np.float64)
