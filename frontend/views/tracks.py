"""Points that move over a plane as a run trains: a tile by layer, a path by expert, its first and last step marked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.clock import Clock
from frontend.figure import Figure
from frontend.views.marks import T, axes, nth, trace
from frontend.views.multiples import FIRST, LAST, Multiples, mark, nearest
from frontend.views.side import Side

TILE, GAP = 250, 34
NAMED = 12
"""Experts that are named on the map; more would cover it, and hovering names each."""


def draw(sides: Sequence[Side], layer: int, clock: Clock, span: int) -> Figure:
    """Every layer has a plane of its own, with the same length for both axes."""
    answer = sides[0].answer
    layers, experts = answer.axes[0].labels, answer.axes[2].labels
    tiles = Multiples(layers, clock, span, (TILE if len(layers) <= 12 else 130, GAP))
    for at, name in enumerate(layers):
        share = answer.facts.get(f"variance shown, layer {name}")
        shown = f", {float(share):.0%} of the variance" if isinstance(share, int | float) else ""
        tiles.title(at, f"layer {name}{shown}", at == nearest(layer, layers))
        _tile(tiles, at, answer.values[at], experts, sides[0])
        axes(tiles.figure, "y", at + 1, scaleanchor=nth("x", at + 1), scaleratio=1)
    bare = {"showticklabels": False, "ticks": "", "linecolor": T["line"], "mirror": True}
    axes(tiles.figure, "x", **bare)
    axes(tiles.figure, "y", **bare)
    tiles.key(f"○ first, {clock.words(0)}   ◆ last, {clock.words(clock.last)}   ● the step shown", 10)
    return tiles.finished(l=10, r=10, b=34)


def _tile(tiles: Multiples, at: int, points: np.ndarray, experts: Sequence[str], side: Side) -> None:
    clock, figure = tiles.clock, tiles.figure
    # One trace for all paths, parted by gaps: a trace for each expert would be slow to draw and to move.
    gap = np.full((1, len(experts), 2), np.nan)
    path = np.concatenate([points, gap]).transpose(1, 0, 2).reshape(-1, 2)
    hover = [text for name in experts for text in (*(f"{name}, {clock.words(s)}" for s in range(len(points))), "")]
    trace(
        figure,
        "scatter",
        at + 1,
        x=path[:, 0].astype(np.float32),
        y=path[:, 1].astype(np.float32),
        mode="lines+markers",
        name="path",
        line={"color": T["line-strong"], "width": 1},
        # Ends have marks of their own; a size for each point keeps the gap between two paths.
        marker={"size": [0, *[4] * (clock.last - 1), 0, 0] * len(experts), "color": T["null"]},
        text=hover,
        hovertemplate="%{text}<extra></extra>",
    )
    edge = {"width": 1, "color": T["ink-3"]}
    for where, symbol, name in ((0, FIRST, "first"), (clock.last, LAST, "last")):
        trace(
            figure,
            "scatter",
            at + 1,
            x=points[where, :, 0].astype(np.float32),
            y=points[where, :, 1].astype(np.float32),
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": mark(8, experts), "color": T["ink-3"], "line": edge},
            text=[f"{expert}, {clock.words(where)}, {name}" for expert in experts],
            hovertemplate="%{text}<extra></extra>",
        )
    _now(tiles, at, points, experts, side)


def _now(tiles: Multiples, at: int, points: np.ndarray, experts: Sequence[str], side: Side) -> None:
    named = len(experts) <= NAMED
    look = {
        "mode": "markers+text" if named else "markers",
        "name": "step shown",
        "marker": {"size": mark(10, experts), "color": side.colour, "line": {"width": 1.5, "color": T["surface"]}},
        "text": list(experts),
        "textposition": "top center",
        "textfont": {"size": 11, "color": T["ink"]},
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    # Lists, not arrays: a frame is put into a trace in the browser by plain assignment.
    where = points.round(6).astype(object)
    where[np.isnan(points)] = None
    frames = [
        {"x": x.tolist(), "y": y.tolist(), "customdata": [f"{expert}, {tiles.clock.words(s)}" for expert in experts]}
        for s, (x, y) in enumerate(where.transpose(0, 2, 1))
    ]
    tiles.move(look, at, frames)
