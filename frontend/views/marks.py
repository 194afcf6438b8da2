"""Marks that every view shares: canvas, null band, direct labels, the dotted line of the current layer."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from frontend import theme

T = theme.LIGHT


def canvas(height: int, figure: go.Figure | None = None, **layout: Any) -> go.Figure:
    """A figure in the product's template. The frame sets its size: the figure only says how low it may get."""
    figure = figure or go.Figure()
    settings = {"template": "geometry", "meta": {"height": height}, "uirevision": "keep", "autosize": True} | layout
    return figure.update_layout(**settings)


def label(figure: go.Figure, x: float, y: float, text: str, colour: str, **place: Any) -> None:
    """A name on the mark instead of a legend."""
    settings = {
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
        "font": {"size": 11, "color": colour},
    } | place
    figure.add_annotation(x=x, y=y, text=text, **settings)


def here(figure: go.Figure, x: float, **where: Any) -> None:
    """The current layer, the same dotted ink line everywhere."""
    # plotly drops shapes of subplots without a trace in silence unless told otherwise
    figure.add_vline(
        x=x, line={"color": T["ink"], "width": 1, "dash": "1px,2px"}, exclude_empty_subplots=False, **where
    )


def null_band(figure: go.Figure, x: np.ndarray, low: np.ndarray, high: np.ndarray, **where: Any) -> None:
    """The null as a grey band: flat where it is the same everywhere, a ribbon where it differs by position."""
    if (np.ptp(low) < 1e-12 and np.ptp(high) < 1e-12) or len(x) == 1:
        figure.add_hrect(
            y0=float(low[0]),
            y1=float(high[0]),
            fillcolor=T["null-fill"],
            line_width=0,
            layer="below",
            exclude_empty_subplots=False,
            **where,
        )
        return
    figure.add_scatter(
        x=np.r_[x, x[::-1]],
        y=np.r_[high, low[::-1]],
        fill="toself",
        mode="lines",
        line_width=0,
        fillcolor=T["null-fill"],
        hoverinfo="skip",
        name="null",
        **where,
    )


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
