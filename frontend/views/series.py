"""One measure of every step of a run: a tile by layer, a line by expert or one for the layer, over its null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontend.answer import Answer, Band
from frontend.clock import Clock
from frontend.figure import Figure
from frontend.views.marks import T, axes, label, null_band, spread, trace
from frontend.views.multiples import Multiples, nearest, shapes
from frontend.views.side import Side

TILE, GAP = 150, 40
NAMED = 12


@dataclass(frozen=True)
class Course:
    """Values by step, layer and line, NaN for a step without an answer; bounds alike, where there are any."""

    values: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    null_low: np.ndarray | None
    null_high: np.ndarray | None
    layers: tuple[str, ...]
    lines: tuple[str, ...]


def course(sides: Sequence[Side], clock: Clock) -> Course:
    """All answers on the run's clock, each at the step it is of."""
    first = sides[0].answer
    places = [clock.steps.index(side.label) for side in sides]
    layers, lines = first.axes[0].labels, _lines(first)

    def laid(pick: str, part: str) -> np.ndarray | None:
        bands: list[Band | None] = [getattr(side.answer, pick) for side in sides]
        if all(band is None for band in bands):
            return None
        out = np.full((len(clock.steps), len(layers), len(lines)), np.nan)
        for at, side, band in zip(places, sides, bands, strict=True):
            if band is not None:
                out[at] = flat(side.answer, np.broadcast_to(getattr(band, part), side.answer.values.shape))
        return out

    values = np.full((len(clock.steps), len(layers), len(lines)), np.nan)
    for at, side in zip(places, sides, strict=True):
        values[at] = flat(side.answer, side.answer.values)
    bounds = (laid("interval", "low"), laid("interval", "high"), laid("null", "low"), laid("null", "high"))
    return Course(values, *bounds, layers, lines)


def draw(sides: Sequence[Side], layer: int, clock: Clock, span: int) -> Figure:
    """All tiles share one scale; hovering names expert and step."""
    found = course(sides, clock)
    tall = TILE if len(found.layers) <= 8 else 100
    tiles = Multiples(found.layers, clock, span, (tall, GAP), shared=True)
    low, high = _range(found)
    for at, name in enumerate(found.layers):
        tiles.title(at, f"layer {name}", at == nearest(layer, found.layers))
        _null(tiles, at, found)
        for line in range(len(found.lines)):
            _line(tiles, at, found, line, sides[0])
        tiles.step_line(at, low, high)
        if 1 < len(found.lines) <= NAMED:
            _ends(tiles, at, found, (low, high))
    tiles.clock_axes()
    axes(tiles.figure, "y", range=[low, high])
    tiles.key(_said(sides[0].answer, clock))
    return tiles.finished(b=76, r=34 if 1 < len(found.lines) <= NAMED else 16)


def _said(answer: Answer, clock: Clock) -> str:
    unit = answer.unit.split(" (")[0]
    mean = ", mean over pairs" if answer.values.ndim == 3 else ""
    return f"{unit}{mean}, by {clock.title}<br>○ first   ◆ last   ┊ the step shown"


def _lines(answer: Answer) -> tuple[str, ...]:
    return answer.axes[1].labels if answer.values.ndim == 2 else ("",)


def flat(answer: Answer, values: np.ndarray) -> np.ndarray:
    """Values by layer and line: experts as they are, pairs of experts by the mean over all that differ."""
    if values.ndim == 1:
        return values[:, None]
    if values.ndim == 2:
        return values
    # A shared expert serves every token: its pairs are of another kind, and means over pairs leave it out.
    routed = [i for i, name in enumerate(answer.axes[1].labels) if name != "shared"]
    own, pairs = (x[:, routed][:, :, routed][:, ~np.eye(len(routed), dtype=bool)] for x in (answer.values, values))
    # Over the pairs that have a value: a bound that one of them lacks leaves their mean without a bound.
    known = np.isfinite(own)
    count = known.sum(-1)
    return (np.where(known, pairs, 0).sum(-1) / np.where(count, count, np.nan))[:, None]


def _null(tiles: Multiples, at: int, found: Course) -> None:
    if found.null_low is None or found.null_high is None:
        return
    low, high = found.null_low[:, at], found.null_high[:, at]
    known = np.isfinite(low).all(-1) & np.isfinite(high).all(-1)
    if known.any():
        x = np.flatnonzero(known).astype(np.float64)
        null_band(tiles.figure, x, low[known].min(-1), high[known].max(-1), column=at + 1)


def _line(tiles: Multiples, at: int, found: Course, line: int, side: Side) -> None:
    clock, values, bars = tiles.clock, found.values[:, at, line], None
    alone = len(found.lines) == 1
    if alone and found.low is not None and found.high is not None:
        up, down = found.high[:, at, line] - values, values - found.low[:, at, line]
        bars = {"array": up, "arrayminus": down, "color": side.colour, "thickness": 1, "width": 0}
    name = f"layer {found.layers[at]}" + (f", {found.lines[line]}" if found.lines[line] else "")
    trace(
        tiles.figure,
        "scatter",
        at + 1,
        x=np.arange(len(values), dtype=np.float32),
        y=values.astype(np.float32),
        mode="lines+markers",
        name=name,
        error_y=bars,
        line={"color": side.colour, "width": 2 if alone else 1.25},
        marker={"color": side.colour, **shapes(clock, 5 if alone else 3)},
        opacity=1 if len(found.lines) <= NAMED else 0.55,
        customdata=[f"{name}, {clock.words(s)}" for s in range(len(values))],
        hovertemplate="%{y:.4g} %{customdata}<extra></extra>",
    )


def _ends(tiles: Multiples, at: int, found: Course, extent: tuple[float, float]) -> None:
    last = found.values[-1, at]
    known = [i for i in range(len(last)) if np.isfinite(last[i])]
    low, high = extent
    gap = (high - low) * 11 / TILE
    heights = spread([float(last[i]) for i in known], gap) if known else []
    # A name outside the axis is not drawn: what was pushed below it, or above, moves back with those it stands on.
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    for rank, n in enumerate(order):
        heights[n] = min(max(heights[n], low + rank * gap), high - (len(order) - 1 - rank) * gap)
    for i, height in zip(known, heights, strict=True):
        place = {"xshift": 7, "font": {"size": 10, "color": T["ink-2"]}}
        label(tiles.figure, tiles.clock.last, height, found.lines[i], T["ink-2"], **place, column=at + 1)


def _range(found: Course) -> tuple[float, float]:
    parts = [found.values, *(p for p in (found.null_low, found.null_high) if p is not None)]
    if len(found.lines) == 1:
        parts += [p for p in (found.low, found.high) if p is not None]
    seen = np.concatenate([p[np.isfinite(p)].ravel() for p in parts])
    if not len(seen):
        return 0.0, 1.0
    low, high = float(seen.min()), float(seen.max())
    room = 0.08 * (high - low) or 0.05 * max(abs(high), 1e-6)
    return (0.0 if 0 <= low < 0.4 * high else low - room), high + room
