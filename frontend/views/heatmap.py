"""Two axes as cells: sides stand beside each other on the same rows and one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from frontend.answer import Answer
from frontend.scales import Scale
from frontend.views.marks import T, canvas, label, positions, sparse
from frontend.views.side import Side
from frontend.words import number

FEW_CELLS = 160
COLUMNS_WITH_TEXT = 2.3
"""Cells beside each other, for each of the page's twelve columns, that still hold a number of three figures."""


def draw(sides: Sequence[Side], scale: Scale, layer: int, span: int = 12) -> go.Figure:
    """Rows are the first axis, from the top; the current layer is outlined; NaN stays blank."""
    rows, columns = sides[0].answer.axes
    figure = make_subplots(1, len(sides), shared_yaxes=True, horizontal_spacing=0.04)
    height = int(np.clip(26 * len(rows.labels), 150, 560)) + 70
    canvas(height, figure, margin={"l": 52, "r": 12, "t": 24, "b": 38})
    few = sides[0].answer.values.size <= FEW_CELLS and len(columns.labels) * len(sides) <= COLUMNS_WITH_TEXT * span
    current = _row(rows.labels, layer) if rows.name == "layer" else None
    for i, side in enumerate(sides, 1):
        _cells(figure, side, scale, i, few)
        axis = "x" if i == 1 else f"x{i}"
        label(figure, 0, 1, side.title, side.ink, xref=f"{axis} domain", yref="paper", yanchor="bottom", yshift=5)
        if current is not None:
            figure.add_shape(
                type="rect",
                x0=-0.5,
                x1=len(columns.labels) - 0.5,
                y0=current - 0.5,
                y1=current + 0.5,
                line={"color": T["ink"], "width": 1.5},
                row=1,
                col=i,
            )
    at, texts = sparse(columns.labels, max(4, 17 // len(sides)))
    figure.update_xaxes(
        tickvals=at, ticktext=texts, title_text=columns.name.replace("_", " "), showline=False, ticks=""
    )
    at, texts = sparse(rows.labels, 24)
    figure.update_yaxes(tickvals=at, ticktext=texts, showline=False, ticks="", range=[len(rows.labels) - 0.5, -0.5])
    figure.update_yaxes(title_text=rows.name.replace("_", " "), row=1, col=1)
    return figure


def _cells(figure: go.Figure, side: Side, scale: Scale, column: int, few: bool) -> None:
    answer = side.answer
    rows, columns = answer.axes
    told = (
        [[_told(answer, i, j) for j in range(len(columns.labels))] for i in range(len(rows.labels))]
        if answer.values.size <= 6000
        else None
    )
    text = [["" if np.isnan(v) else number(v, 2) for v in row] for row in answer.values] if few else None
    figure.add_heatmap(
        z=scale.drawn(answer.values),
        hoverongaps=False,
        xgap=1 if few else 0,
        ygap=1,
        customdata=told,
        text=text,
        texttemplate="%{text}" if few else None,
        textfont={"size": 10},
        hovertemplate="%{customdata}<extra></extra>" if told else "%{z:.3g}<extra></extra>",
        row=1,
        col=column,
        **scale.heatmap(),
    )


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
