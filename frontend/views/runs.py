"""Many runs in one picture: a row per run, a dot per layer with its interval, step 0 hollow, the floor as a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, flat_band, label, trace
from frontend.views.side import Side
from frontend.words import number, span


def draw(sides: Sequence[Side]) -> Figure:
    """Sides come as pairs by label: the trained one (role a, b or context) and its control at step 0."""
    trained = [s for s in sides if s.role != "control"]
    starts = {s.label: s.answer for s in sides if s.role == "control"}
    figure = canvas(64 + 44 * len(trained), margin={"l": 128, "r": 104, "t": 20, "b": 38})
    _floor(figure, trained)
    for row, side in enumerate(trained):
        values = side.answer.values.ravel()
        y = row + (np.linspace(-0.26, 0.26, len(values)) if len(values) > 1 else np.zeros(1))
        start = starts.get(side.label)
        if start is not None:
            _dots(figure, start.values.ravel(), y, T["null"], None, f"{side.label}, step 0")
        _dots(figure, values, y, side.colour if side.role in ("a", "b") else T["ink-2"], side, side.label)
        label(
            figure,
            0,
            row,
            side.title,
            side.ink if side.role in ("a", "b") else T["ink-2"],
            xref="paper",
            xanchor="right",
            xshift=-10,
        )
        mean = float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
        bounds = side.answer.interval.over_layers if side.answer.interval is not None else None
        below = f"<br>{span(*bounds)}" if bounds else ""
        label(figure, 1, row, f"<b>{number(mean)}</b>{below}", T["ink"], xref="paper", xshift=10, align="left")
    label(figure, 1, -0.75, "mean over layers", T["ink-3"], xref="paper", xshift=10)
    largest = [float(np.nanmax(s.answer.values)) for s in sides if np.isfinite(s.answer.values).any()] or [1.0]
    title = {"text": trained[0].answer.unit.split(" (")[0]}
    axes(figure, "x", range=[0, max(largest) * 1.08], title=title)
    axes(figure, "y", visible=False, range=[len(trained) - 0.4, -1.1])
    return figure


def _floor(figure: Figure, trained: Sequence[Side]) -> None:
    nulls = [s.answer.null for s in trained if s.answer.null is not None and np.isfinite(s.answer.null.high).any()]
    if not nulls:
        return
    low, high = min(float(np.nanmin(n.low)) for n in nulls), max(float(np.nanmax(n.high)) for n in nulls)
    flat_band(figure, "x", low, high)
    label(figure, high, -0.75, f"floor {number(high)}", T["ink-3"], xshift=4)


def _dots(figure: Figure, x: np.ndarray, y: np.ndarray, colour: str, side: Side | None, name: str) -> None:
    bars = None
    if side is not None and side.answer.interval is not None:
        band = side.answer.interval
        low, high = (
            np.broadcast_to(band.low, side.answer.values.shape).ravel(),
            np.broadcast_to(band.high, side.answer.values.shape).ravel(),
        )
        bars = {"array": high - x, "arrayminus": x - low, "color": colour, "thickness": 1, "width": 0}
    layers = [f"layer {i}" for i in range(len(x))]
    trace(
        figure,
        "scatter",
        x=x,
        y=y,
        mode="markers",
        error_x=bars,
        name=name,
        customdata=layers,
        hovertemplate=f"%{{x:.3f}} {name}, %{{customdata}}<extra></extra>",
        marker={
            "size": 6,
            "color": colour if side is not None else T["surface"],
            "line": {"color": colour, "width": 1.25},
        },
    )
