"""Two axes as cells: sides stand beside each other on the same rows and one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.answer import Answer
from frontend.figure import Figure
from frontend.scales import Scale
from frontend.views.marks import T, axes, canvas, over, positions, shape, sparse, trace, veil
from frontend.views.side import Side
from frontend.words import number

FEW_CELLS = 160
COLUMNS_WITH_TEXT = 2.3
"""Cells beside each other, for each of the page's twelve columns, that still hold a number of three figures."""


def draw(sides: Sequence[Side], scale: Scale, layer: int, span: int = 12) -> Figure:
    """Rows are the first axis, from the top; the current layer is outlined; NaN stays blank."""
    rows = sides[0].answer.axes[0]
    wide = sum(side.answer.values.shape[1] for side in sides)
    height = int(np.clip(26 * len(rows.labels), 150, 560)) + 70
    figure = canvas(height, len(sides), 0.04, margin={"l": 52, "r": 12, "t": 24, "b": 38})
    few = len(rows.labels) * wide <= FEW_CELLS * len(sides) and wide <= COLUMNS_WITH_TEXT * span
    current = _row(rows.labels, layer) if rows.name == "layer" else None
    for i, side in enumerate(sides, 1):
        columns = side.answer.axes[1]
        _cells(figure, side, scale, i, few)
        over(figure, side.title, side.ink, i)
        if current is not None:
            ends = {"x0": -0.5, "x1": len(columns.labels) - 0.5, "y0": current - 0.5, "y1": current + 0.5}
            shape(figure, "rect", i, line={"color": T["ink"], "width": 1.5}, **ends)
        if i > 1:
            axes(figure, "y", i, matches="y", showticklabels=False)
        at, texts = sparse(columns.labels, max(4, 17 // len(sides)))
        title = {"text": columns.name.replace("_", " ")}
        axes(figure, "x", i, tickvals=at, ticktext=texts, title=title, showline=False, ticks="")
    at, texts = sparse(rows.labels, 24)
    axes(figure, "y", tickvals=at, ticktext=texts, showline=False, ticks="", range=[len(rows.labels) - 0.5, -0.5])
    axes(figure, "y", 1, title={"text": rows.name.replace("_", " ")})
    return figure


def _cells(figure: Figure, side: Side, scale: Scale, column: int, few: bool) -> None:
    answer = side.answer
    rows, columns = answer.axes
    told = (
        [[_told(answer, i, j) for j in range(len(columns.labels))] for i in range(len(rows.labels))]
        if answer.values.size <= 6000
        else None
    )
    text = [["" if np.isnan(v) else number(v, 2) for v in row] for row in answer.values] if few else None
    trace(
        figure,
        "heatmap",
        column,
        z=scale.drawn(answer.values),
        hoverongaps=False,
        xgap=1 if few else 0,
        ygap=1,
        customdata=told,
        text=text,
        texttemplate="%{text}" if few else None,
        textfont={"size": 10},
        hovertemplate="%{customdata}<extra></extra>" if told else "%{z:.3g}<extra></extra>",
        **scale.heatmap(),
    )
    if side.faded is not None:
        veil(figure, side.faded, column)


def _told(answer: Answer, i: int, j: int) -> str:
    rows, columns = answer.axes
    where = f"{_named(rows.name, rows.labels[i])}, {_named(columns.name, columns.labels[j])}"
    chance = ""
    if answer.null is not None:
        low = float(np.broadcast_to(answer.null.low, answer.values.shape)[i, j])
        high = float(np.broadcast_to(answer.null.high, answer.values.shape)[i, j])
        chance = ", within chance" if low <= answer.values[i, j] <= high else ", beyond chance"
    return f"{number(float(answer.values[i, j]))} · {where}{chance}"


def _named(axis: str, text: str) -> str:
    return f"{axis.replace('_', ' ')} {text}" if text.isdigit() else text


def _row(labels: tuple[str, ...], layer: int) -> int | None:
    at = positions(labels)
    hits = [] if at is None else np.flatnonzero(at == layer)
    return int(hits[0]) if len(hits) else None
