"""Results with every difficulty the wire and the store must carry."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.result import Axis, Interval, Null, Reason, Result
from backend.wire import Told

LOAD = np.array([[1.0, np.nan, 0.1 + 0.2], [np.inf, -np.inf, 5e-324]])


def load(values: np.ndarray = LOAD) -> Result:
    """Layer by expert, with a null of three different shapes and an interval."""
    layers, experts = values.shape
    return Result(
        measure="expert_load",
        values=values,
        axes=(Axis("layer", tuple(map(str, range(layers)))), Axis("expert", tuple(map(str, range(experts))))),
        unit="load over uniform",
        null=Null(np.array(1.0), np.full((layers, 1), 0.9), np.linspace(1.0, 1.3, experts), "uniform routing"),
        interval=Interval(values - 0.1, values + 0.1, 0.95, "jackknife", (0.1 + 0.2, 1.5)),
        caveats=("tokens of one prompt are alike",),
        facts={"dead": float("nan"), "how": "NaN-free"},
        tokens=1200,
        prompts=80,
    )


def number(value: float) -> Result:
    """No axis, no null, no interval."""
    return Result("load_gap", np.array(value), (), "nats", Reason("no chance level"), Reason("exact: weights only"))


def provenance(**changes: Any) -> dict[str, Any]:
    """Where an answer came from, as the store reads it."""
    return {
        "checkpoints": [{"id": "free/step-02000", "fingerprint": "f"}],
        "prompts": {"name": "four-tasks", "digest": "d", "count": 80},
        "knobs": {"count": "selected"},
        "device": "cpu",
        "seconds": 1.5,
        "created": "2026-01-01T00:00:00+00:00",
    } | changes


def told(result: Result | None = None, **changes: Any) -> Told:
    """A result with its provenance."""
    return Told(result if result is not None else load(), provenance(**changes))


def same(a: Result, b: Result) -> bool:
    """Equal to the last bit, shapes of nulls included."""
    pairs = [(a.values, b.values)]
    if isinstance(a.null, Null) and isinstance(b.null, Null):
        pairs += [(getattr(a.null, n), getattr(b.null, n)) for n in ("mean", "low", "high")]
    if isinstance(a.interval, Interval) and isinstance(b.interval, Interval):
        pairs += [(getattr(a.interval, n), getattr(b.interval, n)) for n in ("low", "high")]
    arrays = all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)
    return arrays and repr(a.to_json()) == repr(b.to_json())
