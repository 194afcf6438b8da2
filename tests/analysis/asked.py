"""How a measure is asked of slots that have nothing to do with each other."""

from __future__ import annotations

from typing import Any

from analysis.measure import Measure


def by_number(measure: Measure) -> dict[str, Any]:
    """Experts paired by their number, where a measure pairs them: no evidence would pair any of unrelated sides."""
    return {"matching": "identity"} if any(knob.name == "matching" for knob in measure.knobs) else {}
