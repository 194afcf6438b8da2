"""Values along one axis: a line with its interval over the null band; panels where a second axis names quantities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from frontend.answer import Band
from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, here, label, null_band, over, positions, sparse, spread, trace
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
    column: int
    named: bool


def draw(sides: Sequence[Side], layer: int) -> Figure:
    """Sides share axes: A and B in their colours, step 0 dashed in grey, names at the line ends."""
    first = sides[0].answer
    axis = first.axes[0]
    at = positions(axis.labels)
    x = at if at is not None else np.arange(len(axis.labels), dtype=np.float64)
    quantities = first.axes[1].labels if first.values.ndim == 2 else ("",)
    alone = len(quantities) == 1
    title = wrap(first.unit.split(" (")[0], TITLE) if alone else [""]
    margin = {"l": 52 + 14 * (len(title) - 1), "r": 118 if alone else 62, "t": 14 if alone else 26, "b": 38}
    figure = canvas(HEIGHT, len(quantities), 0.1, margin=margin, hovermode="x")
    for column, quantity in enumerate(quantities, 1):
        place = _Place(x, at is not None, axis.labels, column, column == len(quantities))
        _panel(figure, sides, place, column - 1 if first.values.ndim == 2 else None)
        if quantity:
            over(figure, quantity, T["ink-2"], column, lift=6)
        if at is not None and axis.name == "layer" and len(x) > 1 and x.min() <= layer <= x.max():
            here(figure, layer, column)
    ticks, texts = sparse(axis.labels, 16)
    ends = [float(x.min()) - 0.35, float(x.max()) + 0.35]
    at = [float(x[i]) for i in ticks]
    axes(figure, "x", tickvals=at, ticktext=texts, title={"text": axis.name}, range=ends)
    if alone:
        axes(figure, "y", title={"text": "<br>".join(title)})
    return figure


def _panel(figure: Figure, sides: Sequence[Side], place: _Place, column: int | None) -> None:
    pick = (lambda a: a) if column is None else (lambda a: a[:, column])
    low, high = _null(sides[0].answer.null, sides[0].answer.values, pick)
    if low is not None and high is not None:
        null_band(figure, place.x, low, high, place.column)
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
    axes(figure, "y", place.column, range=[bottom, top])
    if not place.named:  # names stand once, at the right; further left they would run into the next panel
        return
    heights = spread([y for *_, y in ends], (top - bottom) * 15 / (HEIGHT - 64)) if ends else []
    for (text, ink, x, _), y in zip(ends, heights, strict=True):
        label(figure, x, min(max(y, bottom), top), text, ink, place.column, xshift=24)


def _trace(figure: Figure, side: Side, values: np.ndarray, pick: _Pick, place: _Place) -> None:
    control = side.role in ("control", "context")
    interval, bars = side.answer.interval, None
    if interval is not None and not control:
        low, high = (
            pick(np.broadcast_to(interval.low, side.answer.values.shape)),
            pick(np.broadcast_to(interval.high, side.answer.values.shape)),
        )
        bars = {"array": high - values, "arrayminus": values - low, "color": side.colour, "thickness": 1, "width": 0}
    trace(
        figure,
        "scatter",
        place.column,
        x=place.x,
        y=values,
        mode=("lines" if control else "lines+markers") if place.ordered else "markers",
        error_y=bars,
        name=side.label,
        line={"color": side.colour, "width": 1.5 if control else 2.25, "dash": "4px,3px" if control else "solid"},
        marker={"size": 6, "color": side.colour},
        customdata=list(place.names),
        hovertemplate=f"%{{y:.4g}} {side.label}, %{{customdata}}<extra></extra>",
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
