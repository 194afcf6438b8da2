"""The catalogue of measures as clients read it: what each asks, of what, with which knobs."""

from __future__ import annotations

from typing import Any

from analysis.measure import Knob, Measure, measures


def catalogue() -> list[dict[str, Any]]:
    """Every registered measure, by family and name."""
    return [describe(each) for each in sorted(measures().values(), key=lambda m: (m.family, m.name))]


def describe(measure: Measure) -> dict[str, Any]:
    """One measure in plain words and lists."""
    return {
        "name": measure.name,
        "title": measure.title,
        "question": measure.question,
        "unit": measure.unit,
        "source": measure.source,
        "family": measure.family,
        "reads": list(measure.reads),
        "axes": list(measure.axes),
        "sides": list(measure.sides),
        "knobs": [_knob(knob) for knob in measure.knobs],
        "prompts": bool(measure.statistics),
        "slow": measure.slow,
        "slow_if": dict(measure.slow_if),
        "caveat": measure.caveat,
        "interval_reason": measure.interval_reason,
        "no_interval_if": {knob: dict(reasons) for knob, reasons in measure.no_interval_if.items()},
        "null_reason": measure.null_reason,
    }


def _knob(knob: Knob) -> dict[str, Any]:
    told = {"name": knob.name, "kind": knob.kind, "default": knob.default, "choices": list(knob.choices)}
    return told | {"range": str(knob.range) if knob.range else None}
