"""Values to turn a measure's knobs to."""

from __future__ import annotations

from typing import Any

from analysis.knob import MOST, Knob, Range


def others(knob: Knob) -> list[Any]:
    """What it may be beside its default: every other choice, the switch turned, another number in its range."""
    default = knob.default
    if knob.kind == "choice":
        return [choice for choice in knob.choices if choice != default]
    if knob.kind == "bool":
        return [not default]
    within = knob.range or Range(-MOST)
    beside = (2 * default + 1, default / 2) if knob.kind == "float" else (2 * default + 1, default + 1, default - 1)
    return [next(value for value in beside if value != default and within.holds(value))]
