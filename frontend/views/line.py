"""Values along one axis: a line with its interval over the null band; panels where a second axis names quantities.

One line has its interval as whiskers; whiskers of several would stand in each other, so there it is a band of its hue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from frontend.answer import Band
from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, here, label, null_band, over, positions, sparse, spread, trace
from frontend.views.side import LETTERS, Side, with_chance

HEIGHT = 300
TITLE = 36
"""Characters of an axis title that fit its height; a longer one takes two lines."""
LETTER = 6.2
"""Pixels that a letter of a line's name takes, on average."""
VEIL = 0.16
"""How much of its hue the band of an interval has; two lie over each other and over the null."""
FADED = 0.15
"""How much of a point is left that chance explains."""
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
    right = max(118, LETTER * max(len(s.label) for s in sides) + (76 if _compared(sides) else 40)) if alone else 62
    margin = {"l": 52 + 14 * (len(title) - 1), "r": min(right, 220), "t": 14 if alone else 26, "b": 38}
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
    chance = with_chance(sides)
    low, high = _null(chance.answer.null, chance.answer.values, pick)
    if low is not None and high is not None:
        known = np.isfinite(low) & np.isfinite(high)
        null_band(figure, place.x[known], low[known], high[known], place.column)
    bands = _compared(sides) and place.ordered
    ends: list[tuple[str, str, float, float]] = []
    seen = [v for v in (low, high) if v is not None]
    for side in reversed(sides):
        values = pick(side.answer.values)
        bounds = _bounds(side, pick)
        if bands and bounds:
            _ribbon(figure, side, bounds, place)
        faded = None if side.faded is None else pick(side.faded)
        _trace(figure, side, values, [] if bands else bounds, place, faded)
        seen += [values, *bounds]
        if np.isfinite(values).any():
            last = int(np.flatnonzero(np.isfinite(values))[-1])
            short = side.title.split(" ")[0] if side.role in LETTERS else side.label
            name = (side.title if column is None else short) + (", baseline" if bands and side.role == "a" else "")
            ends.append((name, side.ink, float(place.x[last]), float(values[last])))
    bottom, top = _range(seen)
    if low is not None and high is not None:
        at = int(np.flatnonzero(known)[-1])
        middle = (max(float(low[at]), bottom) + min(float(high[at]), top)) / 2
        whose = f"chance, {chance.role.upper()}" if _compared(sides) else "chance"
        ends.append((whose, T["ink-3"], float(place.x[-1]), middle))
    axes(figure, "y", place.column, range=[bottom, top])
    if not place.named:  # names stand once, at the right; further left they would run into the next panel
        return
    heights = spread([y for *_, y in ends], (top - bottom) * 15 / (HEIGHT - 64)) if ends else []
    for (text, ink, x, _), y in zip(ends, heights, strict=True):
        label(figure, x, min(max(y, bottom), top), text, ink, place.column, xshift=24)


def _compared(sides: Sequence[Side]) -> bool:
    """Whether several checkpoints share the frame; a checkpoint beside its own start is no comparison."""
    return sum(side.role in LETTERS for side in sides) > 1


def _ribbon(figure: Figure, side: Side, bounds: list[np.ndarray], place: _Place) -> None:
    """The interval as a band; one polygon for each run of known bounds, for a gap is no zero."""
    low, high = bounds
    known = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    xs, ys = [], []
    for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
        if len(run):
            xs += [place.x[run], place.x[run][::-1], [np.nan]]
            ys += [high[run], low[run][::-1], [np.nan]]
    if not xs:
        return
    trace(
        figure,
        "scatter",
        place.column,
        x=np.concatenate(xs)[:-1],
        y=np.concatenate(ys)[:-1],
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=side.colour,
        opacity=VEIL,
        hoverinfo="skip",
        name=f"interval of {side.label}",
    )


def _trace(
    figure: Figure, side: Side, values: np.ndarray, bounds: list[np.ndarray], place: _Place, faded: np.ndarray | None
) -> None:
    control, bars = side.role in ("control", "context"), None
    if bounds:
        low, high = bounds
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
        line={"color": side.colour, "width": 1.5 if control else 2.25, "dash": side.dash},
        marker={"size": 6, "color": side.colour} | ({} if faded is None else {"opacity": np.where(faded, FADED, 1.0)}),
        customdata=list(place.names),
        hovertemplate=f"%{{y:.4g}} {side.label}, %{{customdata}}<extra></extra>",
    )


def _null(null: Band | None, values: np.ndarray, pick: _Pick) -> tuple[np.ndarray | None, np.ndarray | None]:
    if null is None or not np.isfinite(null.low).any():
        return None, None
    low, high = pick(np.broadcast_to(null.low, values.shape)), pick(np.broadcast_to(null.high, values.shape))
    return (low, high) if (np.isfinite(low) & np.isfinite(high)).any() else (None, None)


def _bounds(side: Side, pick: _Pick) -> list[np.ndarray]:
    band, shape = side.answer.interval, side.answer.values.shape
    if band is None or side.role in ("control", "context"):
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
