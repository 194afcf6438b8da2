"""Points in the plane: hue and shape by group, a frame per side.

The axes of a projection carry no unit, so they show none; two quantities against each other show theirs and both nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from frontend import theme
from frontend.views.marks import T, canvas, label
from frontend.views.side import Side

GLASS = "rgba(0,0,0,0)"


def draw(sides: Sequence[Side]) -> go.Figure:
    """First two coordinates; group names stand on their points."""
    figure = make_subplots(1, len(sides), horizontal_spacing=0.05)
    canvas(340, figure, margin={"l": 12, "r": 12, "t": 24, "b": 26}, dragmode="lasso")
    for column, side in enumerate(sides, 1):
        axis, coordinates = side.answer.axes
        points = side.answer.values[:, :2]
        groups = np.array(axis.groups or ("",) * len(axis.labels), dtype=object)
        names = tuple(dict.fromkeys(groups.tolist()))
        styles = theme.categories(names)
        if names == ("",):  # no kinds: the points wear their side's colour
            styles = {"": replace(styles[""], mark=side.colour)}
        for name in names:
            inside = groups == name
            _group(figure, points[inside], np.array(axis.labels, dtype=object)[inside], (name, styles[name]), column)
        paths = _paths(axis.labels, groups)
        for name, rows in paths.items():
            _path(figure, points[rows], name, column)
        if not paths:
            _labels(figure, points, groups, styles, column)
        x = "x" if column == 1 else f"x{column}"
        label(figure, 0, 1, side.title, side.ink, xref=f"{x} domain", yref="paper", yanchor="bottom", yshift=5)
        figure.update_xaxes(title_text=coordinates.labels[0], row=1, col=column)
    figure.update_xaxes(linecolor=T["line"], mirror=True)
    figure.update_yaxes(linecolor=T["line"], mirror=True)
    return _measured(figure, sides) if sides[0].answer.null is not None else _bare(figure)


def _bare(figure: go.Figure) -> go.Figure:
    figure.update_xaxes(showticklabels=False, ticks="")
    return figure.update_yaxes(showticklabels=False, ticks="")


def _measured(figure: go.Figure, sides: Sequence[Side]) -> go.Figure:
    """Ticks, the second axis' name, one range for all sides, and the null of either quantity as a band."""
    points = np.concatenate([side.answer.values[:, :2] for side in sides])
    points = points[np.isfinite(points).all(1)]
    if len(points):
        low, high = points.min(0), points.max(0)
        room = 0.06 * (high - low) + 1e-9
        figure.update_xaxes(range=[low[0] - room[0], high[0] + room[0]])
        figure.update_yaxes(range=[low[1] - room[1], high[1] + room[1]])
    figure.update_layout(margin={"l": 56, "b": 38})
    figure.update_yaxes(title_text=sides[0].answer.axes[1].labels[1], row=1, col=1)
    for column, side in enumerate(sides, 1):
        if side.answer.null is None:
            continue
        null, size = side.answer.null, side.answer.values.shape
        low, high = np.broadcast_to(null.low, size)[0], np.broadcast_to(null.high, size)[0]
        band: dict = {"fillcolor": T["null-fill"], "line_width": 0, "layer": "below", "row": 1, "col": column}
        figure.add_vrect(x0=low[0], x1=high[0], exclude_empty_subplots=False, **band)
        figure.add_hrect(y0=low[1], y1=high[1], exclude_empty_subplots=False, **band)
    return figure


def _paths(labels: Sequence[str], groups: np.ndarray) -> dict[str, list[int]]:
    """Rows of the same thing at several steps, where labels are a step and a name ("320 E4")."""
    found: dict[str, list[int]] = {}
    for row, (text, group) in enumerate(zip(labels, groups, strict=True)):
        if not group or not text.startswith(f"{group} "):
            return {}
        found.setdefault(text.removeprefix(f"{group} "), []).append(row)
    return found if all(len(rows) > 1 for rows in found.values()) else {}


def _path(figure: go.Figure, points: np.ndarray, name: str, column: int) -> None:
    line = {"color": T["line-strong"], "width": 1}
    x, y = points[:, 0].astype(np.float32), points[:, 1].astype(np.float32)
    figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", name=name, row=1, col=column)
    if np.isfinite(points[-1]).all():
        end = points[-1]
        label(figure, float(end[0]), float(end[1]), name, T["ink-2"], xshift=7, row=1, col=column)


def _group(
    figure: go.Figure, points: np.ndarray, names: np.ndarray, style: tuple[str, theme.CategoryStyle], column: int
) -> None:
    group, look = style
    figure.add_scatter(
        x=points[:, 0].astype(np.float32),
        y=points[:, 1].astype(np.float32),
        mode="markers",
        name=group,
        text=names.tolist(),
        hovertemplate=f"%{{text}} {group}<extra></extra>",
        row=1,
        col=column,
        marker={"size": 8, "symbol": look.shape, "color": look.mark, "line": {"width": 1, "color": T["surface"]}},
        unselected={"marker": {"opacity": 0.18}},
    )


def _labels(
    figure: go.Figure, points: np.ndarray, groups: np.ndarray, styles: dict[str, theme.CategoryStyle], column: int
) -> None:
    """Each name above its own median; names that would collide move apart."""
    names = [n for n in styles if n]
    if not names or len(names) > 8 or not np.isfinite(points).all():
        return
    spots = np.array([[np.median(points[groups == n, 0]), np.quantile(points[groups == n, 1], 0.85)] for n in names])
    extent = np.ptp(points, axis=0) + 1e-12
    for _ in range(20):
        for i, j in combinations(range(len(names)), 2):
            gap = (spots[i] - spots[j]) / extent
            if abs(gap[0]) < 0.2 and abs(gap[1]) < 0.07:
                push = 0.02 * extent[1] * (1 if gap[1] >= 0 else -1)
                spots[i, 1] += push
                spots[j, 1] -= push
    for name, (x, y) in zip(names, spots, strict=True):
        label(
            figure,
            float(x),
            float(y),
            f"<b>{name}</b>",
            styles[name].word,
            xanchor="center",
            yanchor="bottom",
            yshift=7,
            row=1,
            col=column,
        )
