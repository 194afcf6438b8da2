"""A single number: the value on its axis with interval and null, written large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from frontend.views.marks import T, canvas, label
from frontend.views.side import Side
from frontend.words import number


def draw(sides: Sequence[Side]) -> go.Figure:
    """One row per side; A's null stands behind all of them."""
    figure = canvas(80 + 44 * len(sides), margin={"l": 16, "r": 90, "t": 12, "b": 34})
    null = sides[0].answer.null
    if null is not None:
        figure.add_vrect(
            x0=float(null.low),
            x1=float(null.high),
            fillcolor=T["null-fill"],
            line_width=0,
            layer="below",
            exclude_empty_subplots=False,
        )
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
        figure.add_scatter(
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
    figure.update_yaxes(visible=False, range=[-len(sides) + 0.3, 0.8])
    figure.update_xaxes(title_text=sides[0].answer.unit)
    return figure
