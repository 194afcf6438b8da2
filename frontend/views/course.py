"""Values along the steps of a run: a line for each layer, early ones light and late ones dark; steps evenly spaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend import theme
from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, label, null_band, sparse, spread, trace
from frontend.views.side import Side

HEIGHT = 320


def draw(sides: Sequence[Side]) -> Figure:
    """Steps are stored where much happens: even spacing shows each of them, the ticks tell how far apart they are."""
    answer = sides[0].answer
    steps, lines = answer.axes[0].labels, answer.axes[1].labels if answer.values.ndim == 2 else ("",)
    values = answer.values.reshape(len(steps), len(lines))
    figure = canvas(HEIGHT, margin={"l": 56, "r": 96, "t": 14, "b": 38}, hovermode="x")
    x = np.arange(len(steps), dtype=np.float64)
    if answer.null is not None and np.isfinite(answer.null.low).any():
        shape = answer.values.shape
        low = np.nanmin(np.broadcast_to(answer.null.low, shape).reshape(values.shape), axis=1)
        high = np.nanmax(np.broadcast_to(answer.null.high, shape).reshape(values.shape), axis=1)
        null_band(figure, x, low, high)
        label(figure, x[0], float(low[0]), "chance", T["ink-3"], yanchor="top", yshift=-2)
    shades = _shades(len(lines))
    for column, name in enumerate(lines):
        _line(figure, x, values[:, column], (f"{answer.axes[-1].name} {name}", shades[column]), steps)
    _ends(figure, x[-1], values[-1], lines)
    at, texts = sparse(tuple(f"{int(s):,}" if s.isdigit() else s for s in steps), 10)
    title = {"text": answer.axes[0].name}
    axes(figure, "x", tickvals=at, ticktext=texts, title=title, range=[-0.3, len(steps) - 0.7])
    axes(figure, "y", title={"text": answer.unit.split(" (")[0]})
    return figure


def _shades(count: int) -> list[str]:
    return [theme.LIGHT[f"mag-{2 + round(4 * i / max(count - 1, 1))}"] for i in range(count)]


def _line(figure: Figure, x: np.ndarray, y: np.ndarray, look: tuple[str, str], steps: Sequence[str]) -> None:
    name, colour = look
    trace(
        figure,
        "scatter",
        x=x,
        y=y,
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2},
        marker={"size": 6, "color": colour},
        customdata=list(steps),
        hovertemplate=f"%{{y:.4g}} {name}, step %{{customdata}}<extra></extra>",
    )


def _ends(figure: Figure, x: float, y: np.ndarray, lines: Sequence[str]) -> None:
    known = [i for i in range(len(lines)) if np.isfinite(y[i])]
    if len(known) > 12 or not known:
        return
    extent = float(np.ptp(y[known])) or 1.0
    heights = spread([float(y[i]) for i in known], max(extent, 0.2 * float(np.abs(y[known]).max())) * 0.07)
    for i, height in zip(known, heights, strict=True):
        label(figure, float(x), height, lines[i], T["ink-2"], xshift=10)
