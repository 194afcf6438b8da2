"""Values along the steps of a run: a line for each layer, early ones light and late ones dark; steps evenly spaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend import theme
from frontend.clock import Clock
from frontend.figure import Figure
from frontend.views.marks import T, axes, label, null_band, spread, trace
from frontend.views.multiples import Multiples, shapes
from frontend.views.side import Side

HEIGHT = 320


def draw(sides: Sequence[Side], clock: Clock) -> Figure:
    """Steps are stored where much happens: even spacing shows each of them, the ticks tell how far apart they are."""
    answer = sides[0].answer
    lines = answer.axes[1].labels if answer.values.ndim == 2 else ("",)
    values = answer.values.reshape(len(clock.steps), len(lines))
    tiles = Multiples(("",), clock, 12, (HEIGHT - 68, 0))
    figure, x = tiles.figure, np.arange(len(clock.steps), dtype=np.float64)
    seen = [values]
    if answer.null is not None and np.isfinite(answer.null.low).any():
        shape = answer.values.shape
        low = np.nanmin(np.broadcast_to(answer.null.low, shape).reshape(values.shape), axis=1)
        high = np.nanmax(np.broadcast_to(answer.null.high, shape).reshape(values.shape), axis=1)
        null_band(figure, x, low, high)
        label(figure, x[0], float(low[0]), "chance", T["ink-3"], yanchor="top", yshift=-2)
        seen += [low, high]
    shades = _shades(len(lines))
    for column, name in enumerate(lines):
        _line(figure, values[:, column], (f"{answer.axes[-1].name} {name}", shades[column]), clock)
    _ends(figure, x[-1], values[-1], lines)
    known = np.concatenate([part[np.isfinite(part)].ravel() for part in seen])
    tiles.step_line(0, float(known.min()), float(known.max())) if len(known) else None
    tiles.clock_axes()
    axes(figure, "x", title={"text": f"{clock.title}   ○ first   ◆ last   ┊ the step shown"})
    axes(figure, "y", title={"text": answer.unit.split(" (")[0]})
    figure["layout"]["hovermode"] = "x"
    return tiles.finished(l=56, r=96, t=14, b=54)


def _shades(count: int) -> list[str]:
    return [theme.LIGHT[f"mag-{2 + round(4 * i / max(count - 1, 1))}"] for i in range(count)]


def _line(figure: Figure, y: np.ndarray, look: tuple[str, str], clock: Clock) -> None:
    name, colour = look
    trace(
        figure,
        "scatter",
        x=np.arange(len(y), dtype=np.float64),
        y=y,
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2},
        marker={"color": colour, **shapes(clock, 6)},
        customdata=[clock.words(s) for s in range(len(y))],
        hovertemplate=f"%{{y:.4g}} {name}, %{{customdata}}<extra></extra>",
    )


def _ends(figure: Figure, x: float, y: np.ndarray, lines: Sequence[str]) -> None:
    known = [i for i in range(len(lines)) if np.isfinite(y[i])]
    if len(known) > 12 or not known:
        return
    extent = float(np.ptp(y[known])) or 1.0
    heights = spread([float(y[i]) for i in known], max(extent, 0.2 * float(np.abs(y[known]).max())) * 0.07)
    for i, height in zip(known, heights, strict=True):
        label(figure, float(x), height, lines[i], T["ink-2"], xshift=10)
