"""Things against the same things: a square per side, sorted into its groups with gutters between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend import theme
from frontend.answer import Answer
from frontend.figure import Figure
from frontend.scales import Scale
from frontend.views.marks import T, axes, canvas, label, nth, over, trace
from frontend.views.side import Side

WIDTH = 1300
"""Pixels that squares beside each other have to share, with what stands around them: more height would stay empty."""


def draw(sides: Sequence[Side], scale: Scale, layer: int) -> Figure:
    """All sides on one scale; group names stand at the edges in their own colours."""
    figure = canvas(min(400, WIDTH // len(sides)), len(sides), 0.05, margin={"l": 24, "r": 8, "t": 24, "b": 22})
    for column, side in enumerate(sides, 1):
        order, at, groups = arranged(side.answer)
        n = int(at[-1]) + 1 if len(at) else 0
        z = np.full((n, n), np.nan, np.float32)
        z[np.ix_(at, at)] = scale.drawn(side.answer.values[np.ix_(order, order)])
        names = np.full(n, "", dtype=object)
        names[at] = np.array(side.answer.axes[0].labels, dtype=object)[order]
        trace(
            figure,
            "heatmap",
            column,
            z=z,
            x=np.arange(n, dtype=np.int32),
            y=np.arange(n, dtype=np.int32),
            hoverongaps=False,
            customdata=[[f"{r} · {c}" for c in names] for r in names] if n <= 200 else None,
            hovertemplate="%{z:.3f} %{customdata}<extra></extra>" if n <= 200 else "%{z:.3f}<extra></extra>",
            **scale.heatmap(),
        )
        over(figure, side.title, side.ink, column)
        _names(figure, groups, n, column)
        # ranges are set, for an automatic one would make room for the names outside and part the squares' sizes
        axes(figure, "x", column, range=[-0.5, n - 0.5])
        axes(figure, "y", column, range=[n - 0.5, -0.5], scaleanchor=nth("x", column))
    axes(figure, "x", visible=False, constrain="domain", constraintoward="left")
    axes(figure, "y", visible=False, constrain="domain", constraintoward="top")
    return figure


def arranged(answer: Answer) -> tuple[np.ndarray, np.ndarray, list[tuple[str, float]]]:
    """Row order by group, where each row lands once gutters are in, and each group's name with its middle."""
    axis = answer.axes[0]
    groups = axis.groups or ("",) * len(axis.labels)
    names = list(dict.fromkeys(groups))
    order = np.array([i for name in names for i, g in enumerate(groups) if g == name], dtype=int)
    rank = np.array([names.index(groups[i]) for i in order], dtype=int)
    at = np.arange(len(order)) + max(1, round(len(order) / 40)) * rank
    return order, at, [(name, float(at[rank == k].mean())) for k, name in enumerate(names) if name]


def _names(figure: Figure, groups: list[tuple[str, float]], n: int, column: int) -> None:
    styles = theme.categories(tuple(name for name, _ in groups))
    if len(groups) > 8:
        return
    for name, middle in groups:
        colour = styles[name].word
        label(figure, middle, n - 0.5, name, colour, column, xanchor="center", yanchor="top", yshift=-3)
        if column == 1:
            label(figure, -0.5, middle, name, colour, column, xanchor="right", textangle=-90, xshift=-4)
    if not groups:
        label(figure, 0, n, "in the answer's own order", T["ink-3"], column, yanchor="top")
