"""Values along one axis: a line with its interval over the null band; panels where a second axis names quantities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from frontend.answer import Band
from frontend.views.marks import T, canvas, here, label, null_band, positions, sparse, spread
from frontend.views.side import Side

HEIGHT = 300
TITLE = 36
"""Characters of an axis title that fit its height; a longer one takes two lines."""
_Pick = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Place:
    x: np.ndarray
    ordered: bool
    names: tuple[str, ...]
    row_col: dict[str, Any]
    named: bool


def draw(sides: Sequence[Side], layer: int) -> go.Figure:
    """Sides share axes: A and B in their colours, step 0 dashed in grey, names at the line ends."""
    first = sides[0].answer
    axis = first.axes[0]
    at = positions(axis.labels)
    x = at if at is not None else np.arange(len(axis.labels), dtype=np.float64)
    quantities = first.axes[1].labels if first.values.ndim == 2 else ("",)
    figure = make_subplots(1, len(quantities), horizontal_spacing=0.1 if len(quantities) > 1 else 0)
    right = 118 if len(quantities) == 1 else 62
    canvas(HEIGHT, figure, margin={"l": 52, "r": right, "t": 26 if len(quantities) > 1 else 14, "b": 38}, hovermode="x")
    for column, quantity in enumerate(quantities, 1):
        place = _Place(x, at is not None, axis.labels, {"row": 1, "col": column}, column == len(quantities))
        _panel(figure, sides, place, column - 1 if first.values.ndim == 2 else None)
        if quantity:
            name = "x" if column == 1 else f"x{column}"
            label(figure, 0, 1, quantity, T["ink-2"], xref=f"{name} domain", yref="paper", yanchor="bottom", yshift=6)
        if at is not None and axis.name == "layer" and len(x) > 1 and x.min() <= layer <= x.max():
            here(figure, layer, **place.row_col)
    ticks, texts = sparse(axis.labels, 16)
    figure.update_xaxes(
        tickvals=[float(x[i]) for i in ticks],
        ticktext=texts,
        title_text=axis.name,
        range=[float(x.min()) - 0.35, float(x.max()) + 0.35],
    )
    if len(quantities) == 1:
        title = wrap(first.unit.split(" (")[0], TITLE)
        figure.update_yaxes(title_text="<br>".join(title))
        figure.update_layout(margin_l=52 + 14 * (len(title) - 1))
    return figure


def _panel(figure: go.Figure, sides: Sequence[Side], place: _Place, column: int | None) -> None:
    pick = (lambda a: a) if column is None else (lambda a: a[:, column])
    low, high = _null(sides[0].answer.null, sides[0].answer.values, pick)
    if low is not None and high is not None:
        null_band(figure, place.x, low, high, **place.row_col)
    ends: list[tuple[str, str, float, float]] = []
    seen = [v for v in (low, high) if v is not None]
    for side in reversed(sides):
        values = pick(side.answer.values)
        _trace(figure, side, values, pick, place)
        seen += [values, *_bounds(side, pick)]
        if np.isfinite(values).any():
            last = int(np.flatnonzero(np.isfinite(values))[-1])
            short = side.title.split(" ")[0] if side.role in ("a", "b") else side.label
            ends.append((side.title if column is None else short, side.ink, float(place.x[last]), float(values[last])))
    bottom, top = _range(seen)
    if low is not None and high is not None:
        middle = (max(float(low[-1]), bottom) + min(float(high[-1]), top)) / 2
        ends.append(("chance", T["ink-3"], float(place.x[-1]), middle))
    figure.update_yaxes(range=[bottom, top], **place.row_col)
    if not place.named:  # names stand once, at the right; further left they would run into the next panel
        return
    heights = spread([y for *_, y in ends], (top - bottom) * 15 / (HEIGHT - 64)) if ends else []
    for (text, ink, x, _), y in zip(ends, heights, strict=True):
        label(figure, x, min(max(y, bottom), top), text, ink, xshift=24, **place.row_col)


def _trace(figure: go.Figure, side: Side, values: np.ndarray, pick: _Pick, place: _Place) -> None:
    control = side.role in ("control", "context")
    interval, bars = side.answer.interval, None
    if interval is not None and not control:
        low, high = (
            pick(np.broadcast_to(interval.low, side.answer.values.shape)),
            pick(np.broadcast_to(interval.high, side.answer.values.shape)),
        )
        bars = {"array": high - values, "arrayminus": values - low, "color": side.colour, "thickness": 1, "width": 0}
    figure.add_scatter(
        x=place.x,
        y=values,
        mode=("lines" if control else "lines+markers") if place.ordered else "markers",
        error_y=bars,
        name=side.label,
        line={"color": side.colour, "width": 1.5 if control else 2.25, "dash": "4px,3px" if control else "solid"},
        marker={"size": 6, "color": side.colour},
        customdata=list(place.names),
        hovertemplate=f"%{{y:.4g}} {side.label}, %{{customdata}}<extra></extra>",
        **place.row_col,
    )


def _null(null: Band | None, values: np.ndarray, pick: _Pick) -> tuple[np.ndarray | None, np.ndarray | None]:
    if null is None or not np.isfinite(null.low).any():
        return None, None
    low, high = pick(np.broadcast_to(null.low, values.shape)), pick(np.broadcast_to(null.high, values.shape))
    return (low, high) if np.isfinite(low).all() and np.isfinite(high).all() else (None, None)


def _bounds(side: Side, pick: _Pick) -> list[np.ndarray]:
    band, shape = side.answer.interval, side.answer.values.shape
    if band is None or side.role == "control":
        return []
    return [pick(np.broadcast_to(band.low, shape)), pick(np.broadcast_to(band.high, shape))]


def _range(parts: list[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([np.asarray(p)[np.isfinite(p)].ravel() for p in parts])
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if low == high == 0:
        return 0.0, 1.0
    room = 0.08 * (high - low) or 0.05 * max(abs(high), 1e-6)
    return (0.0 if low >= 0 and low < 0.4 * high else low - room), high + room
