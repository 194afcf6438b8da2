"""Long form, one row per value: the view of answers with more axes than a figure can carry, and every figure's twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from frontend.answer import Answer
from frontend.figure import Figure
from frontend.views.marks import T, canvas
from frontend.views.side import Side
from frontend.words import number

MOST_ROWS = 20_000


def rows(answer: Answer, most: int = MOST_ROWS) -> list[dict[str, Any]]:
    """The answer in long form with bounds where it has them; undefined values are None, never zero."""
    parts = {"value": answer.values}
    if answer.interval is not None:
        parts |= {"low": answer.interval.low, "high": answer.interval.high}
    if answer.null is not None:
        parts |= {"null low": answer.null.low, "null high": answer.null.high}
    flat = {name: np.broadcast_to(part, answer.values.shape) for name, part in parts.items()}
    out = []
    for place in np.ndindex(*answer.values.shape):
        if len(out) >= most:
            break
        row: dict[str, Any] = {axis.name: axis.labels[i] for axis, i in zip(answer.axes, place, strict=True)}
        for name, part in flat.items():
            value = float(part[place])
            row[name] = value if np.isfinite(value) else None
        out.append(row)
    return out


def draw(sides: Sequence[Side]) -> Figure:
    """The first hundred rows as a drawn table; the menu's table and the exports hold all."""
    listed = rows(sides[0].answer, 100)
    names = list(listed[0]) if listed else ["value"]
    figure = canvas(420, margin={"l": 0, "r": 0, "t": 0, "b": 0})
    cells = [
        [number(r[n]) if isinstance(r[n], float) else r[n] if r[n] is not None else "undefined" for r in listed]
        for n in names
    ]
    plain = {"fill": {"color": "rgba(0,0,0,0)"}, "line": {"color": T["line"]}, "align": "left"}
    head = {"values": names, "font": {"color": T["ink-3"], "size": 11}, **plain}
    body = {"values": cells, "font": {"color": T["ink"], "size": 12}, "height": 26, **plain}
    figure["data"].append({"type": "table", "header": head, "cells": body})
    return figure
