"""Marks that every view shares: canvas, frames and axes, null band, direct labels, the line of the current layer."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from frontend import theme
from frontend.figure import Figure

T = theme.LIGHT
VEIL = 0.75
"""How much of a dimmed cell the paper takes."""


def canvas(height: int, columns: int = 1, gap: float = 0.0, **layout: Any) -> Figure:
    """An empty figure with so many frames beside each other, `gap` of the width apart.

    The plate sets its size: the figure only says how low it may get. The product's template is laid under it in the
    browser, where it is kept once for all.
    """
    base = {"meta": {"height": height}, "uirevision": "keep", "autosize": True, "shapes": [], "annotations": []}
    figure: Figure = {"data": [], "layout": base | layout}
    width = (1 - gap * (columns - 1)) / columns
    for column in range(1, columns + 1) if columns > 1 else ():
        start = (column - 1) * (width + gap)
        axes(figure, "x", column, anchor=nth("y", column), domain=[start, min(start + width, 1.0)])
        axes(figure, "y", column, anchor=nth("x", column), domain=[0.0, 1.0])
    return figure


def nth(letter: str, column: int) -> str:
    """The name of a frame's axis: x, x2, x3."""
    return letter if column == 1 else f"{letter}{column}"


def axes(figure: Figure, letter: Literal["x", "y"], column: int | None = None, **settings: Any) -> None:
    """Set properties of the x or y axis of one frame, or of all."""
    layout, start = figure["layout"], f"{letter}axis"
    names = [name for name in layout if name.startswith(start)] if column is None else []
    for name in names or [nth(start, column or 1)]:
        layout.setdefault(name, {}).update(settings)


def trace(figure: Figure, kind: str, column: int = 1, **settings: Any) -> None:
    """Values in a frame; a setting that is None is left out."""
    told = {name: value for name, value in settings.items() if value is not None}
    figure["data"].append({"type": kind, "xaxis": nth("x", column), "yaxis": nth("y", column)} | told)


def shape(figure: Figure, kind: str, column: int = 1, **settings: Any) -> None:
    """A line or rectangle in a frame."""
    where = {"xref": nth("x", column), "yref": nth("y", column)}
    figure["layout"]["shapes"].append({"type": kind} | where | settings)


def label(figure: Figure, x: float, y: float, text: str, colour: str, column: int = 1, **place: Any) -> None:
    """A name on the mark instead of a legend."""
    look = {"xanchor": "left", "yanchor": "middle", "showarrow": False, "font": {"size": 11, "color": colour}}
    where = {"x": x, "y": y, "xref": nth("x", column), "yref": nth("y", column)}
    figure["layout"]["annotations"].append(where | {"text": text} | look | place)


def over(figure: Figure, text: str, colour: str, column: int = 1, lift: int = 5) -> None:
    """The title of a frame, at the left above it."""
    place = {"xref": f"{nth('x', column)} domain", "yref": "paper", "yanchor": "bottom", "yshift": lift}
    label(figure, 0, 1, text, colour, column, **place)


def here(figure: Figure, x: float, column: int = 1) -> None:
    """The current layer, the same dotted ink line everywhere."""
    line = {"color": T["ink"], "width": 1, "dash": "1px,2px"}
    shape(figure, "line", column, x0=x, x1=x, y0=0, y1=1, yref=f"{nth('y', column)} domain", line=line)


def flat_band(figure: Figure, letter: Literal["x", "y"], low: float, high: float, column: int = 1) -> None:
    """The null between two values of one axis, as a grey band from edge to edge of the other."""
    across = "y" if letter == "x" else "x"
    ends = {f"{letter}0": low, f"{letter}1": high, f"{across}0": 0, f"{across}1": 1}
    ends[f"{across}ref"] = f"{nth(across, column)} domain"
    shape(figure, "rect", column, fillcolor=T["null-fill"], line={"width": 0}, layer="below", **ends)


def null_band(figure: Figure, x: np.ndarray, low: np.ndarray, high: np.ndarray, column: int = 1) -> None:
    """The null as a grey band: flat where it is the same everywhere, a ribbon where it differs by position."""
    if (np.ptp(low) < 1e-12 and np.ptp(high) < 1e-12) or len(x) == 1:
        flat_band(figure, "y", float(low[0]), float(high[0]), column)
        return
    trace(
        figure,
        "scatter",
        column,
        x=np.r_[x, x[::-1]],
        y=np.r_[high, low[::-1]],
        fill="toself",
        mode="lines",
        line={"width": 0},
        fillcolor=T["null-fill"],
        hoverinfo="skip",
        name="null",
    )


def veil(figure: Figure, dimmed: np.ndarray, column: int = 1) -> None:
    """Paper over the cells that are dimmed: they are still there, and what stands on them can still be read."""
    z = np.where(dimmed, np.float32(1), np.float32(np.nan))
    ends = [[0, T["surface"]], [1, T["surface"]]]
    look = {"colorscale": ends, "showscale": False, "opacity": VEIL, "hoverinfo": "skip", "name": "dimmed"}
    trace(figure, "heatmap", column, z=z, zmin=0, zmax=1, **look)


def positions(labels: tuple[str, ...]) -> np.ndarray | None:
    """Numeric positions of an axis whose labels are numbers ("3", "layer 3"); None for names."""
    found = [re.fullmatch(r"\D*?(\d+)", text) for text in labels]
    if not labels or not all(found):
        return None
    return np.array([int(m.group(1)) for m in found if m], dtype=np.float64)


def sparse(labels: tuple[str, ...], most: int) -> tuple[list[int], list[str]]:
    """At most `most` ticks, evenly taken."""
    every = max(1, -(-len(labels) // most))
    at = list(range(0, len(labels), every))
    return at, [labels[i] for i in at]


def spread(values: list[float], gap: float) -> list[float]:
    """Values pushed apart until neighbours differ by `gap`, order kept: labels at line ends must not overlap."""
    order = np.argsort(values)
    out = np.array(values, dtype=np.float64)
    for _ in range(30):
        moved = False
        for i, j in pairwise(order):
            if (short := gap - (out[j] - out[i])) > 1e-9:
                out[i] -= short / 2
                out[j] += short / 2
                moved = True
        if not moved:
            break
    return out.tolist()
