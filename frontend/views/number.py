"""A single number: the value on its axis with interval and null, written large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, flat_band, label, trace
from frontend.views.side import Side
from frontend.words import number


def draw(sides: Sequence[Side]) -> Figure:
    """One row per side; A's null stands behind all of them."""
    figure = canvas(80 + 44 * len(sides), margin={"l": 16, "r": 90, "t": 12, "b": 34})
    null = sides[0].answer.null
    if null is not None:
        flat_band(figure, "x", float(null.low), float(null.high))
    for i, side in enumerate(sides):
        value, interval = float(side.answer.values), side.answer.interval
        bars = None
        if interval is not None:
            bars = {
                "array": [float(interval.high) - value],
                "arrayminus": [value - float(interval.low)],
                "color": side.colour,
                "width": 0,
            }
        hollow = side.role == "control"
        trace(
            figure,
            "scatter",
            x=[value],
            y=[-i],
            mode="markers",
            error_x=bars,
            hovertemplate="%{x:.4g}<extra></extra>",
            marker={
                "size": 9,
                "color": T["surface"] if hollow else side.colour,
                "line": {"color": side.colour, "width": 1.5},
            },
        )
        if np.isfinite(value):
            label(figure, value, -i, f"<b>{number(value)}</b> {side.title}", side.ink, yshift=14, xanchor="center")
    axes(figure, "y", visible=False, range=[-len(sides) + 0.3, 0.8])
    axes(figure, "x", title={"text": sides[0].answer.unit})
    return figure
