"""A training run as it goes: the mean over layers as a line, the layers' range as a band; one colour a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from frontend import theme
from frontend.figure import Figure
from frontend.views.marks import axes, canvas, label, trace

HEIGHT = 240
COLOURS = ("a", "b")


def draw(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], quantity: str, unit: str) -> Figure:
    """`runs`: a name and its points each, at most two; a point without the quantity is left out."""
    figure = canvas(HEIGHT, margin={"l": 56, "r": 96, "t": 14, "b": 38}, hovermode="x unified")
    for (name, points), colour in zip(runs, COLOURS, strict=False):
        told = [(p["step"], values) for p in points if (values := known(p.get(quantity))).size]
        if told:
            _run(figure, name, told, theme.LIGHT[colour])
    axes(figure, "x", title={"text": "optimiser step"})
    axes(figure, "y", title={"text": unit.split(" (")[0]}, rangemode="tozero")
    return figure


def known(values: Any) -> np.ndarray:
    """The layers' numbers without those that are not defined."""
    return np.array([v for v in values or () if v is not None], dtype=float)


def known_any(point: Mapping[str, Any], quantity: str) -> bool:
    """Whether a point holds this quantity by layer, defined in one at least."""
    return isinstance(point[quantity], list) and any(isinstance(v, int | float) for v in point[quantity])


def _run(figure: Figure, name: str, told: Sequence[tuple[int, np.ndarray]], colour: str) -> None:
    steps = [step for step, _ in told]
    low, mean, high = ([float(f(values)) for _, values in told] for f in (np.min, np.mean, np.max))
    band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    trace(figure, "scatter", x=steps, y=low, **band)
    trace(figure, "scatter", x=steps, y=high, fill="tonexty", fillcolor=f"{colour}22", **band)
    trace(
        figure,
        "scatter",
        x=steps,
        y=mean,
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2},
        marker={"size": 5, "color": colour},
        customdata=np.stack([low, high], -1),
        hovertemplate=f"{name}: %{{y:.4g}} (layers %{{customdata[0]:.4g}} to %{{customdata[1]:.4g}})<extra></extra>",
    )
    label(figure, steps[-1], mean[-1], name, colour, xshift=10)
