"""Points in the plane: hue and shape by group, a frame per side.

The axes of a projection carry no unit, so they show none; two quantities against each other show theirs and both nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from frontend import theme
from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, flat_band, label, over, trace
from frontend.views.side import Side


def draw(sides: Sequence[Side]) -> Figure:
    """First two coordinates; group names stand on their points."""
    figure = canvas(340, len(sides), 0.05, margin={"l": 12, "r": 12, "t": 24, "b": 26}, dragmode="lasso")
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
        over(figure, side.title, side.ink, column)
        axes(figure, "x", column, title={"text": coordinates.labels[0]})
    measured = sides[0].answer.null is not None
    look = {"linecolor": T["line"], "mirror": True} | ({} if measured else {"showticklabels": False, "ticks": ""})
    axes(figure, "x", **look)
    axes(figure, "y", **look)
    if measured:
        _measured(figure, sides)
    return figure


def _measured(figure: Figure, sides: Sequence[Side]) -> None:
    """Ticks, the second axis' name, one range for all sides, and the null of either quantity as a band."""
    points = np.concatenate([side.answer.values[:, :2] for side in sides])
    points = points[np.isfinite(points).all(1)]
    if len(points):
        low, high = points.min(0), points.max(0)
        room = 0.06 * (high - low) + 1e-9
        axes(figure, "x", range=[float(low[0] - room[0]), float(high[0] + room[0])])
        axes(figure, "y", range=[float(low[1] - room[1]), float(high[1] + room[1])])
    figure["layout"]["margin"] |= {"l": 56, "b": 38}
    axes(figure, "y", 1, title={"text": sides[0].answer.axes[1].labels[1]})
    for column, side in enumerate(sides, 1):
        if side.answer.null is None:
            continue
        null, size = side.answer.null, side.answer.values.shape
        low, high = np.broadcast_to(null.low, size)[0], np.broadcast_to(null.high, size)[0]
        flat_band(figure, "x", float(low[0]), float(high[0]), column)
        flat_band(figure, "y", float(low[1]), float(high[1]), column)


def _paths(labels: Sequence[str], groups: np.ndarray) -> dict[str, list[int]]:
    """Rows of the same thing at several steps, where labels are a step and a name ("320 E4")."""
    found: dict[str, list[int]] = {}
    for row, (text, group) in enumerate(zip(labels, groups, strict=True)):
        if not group or not text.startswith(f"{group} "):
            return {}
        found.setdefault(text.removeprefix(f"{group} "), []).append(row)
    return found if all(len(rows) > 1 for rows in found.values()) else {}


def _path(figure: Figure, points: np.ndarray, name: str, column: int) -> None:
    line = {"color": T["line-strong"], "width": 1}
    x, y = points[:, 0].astype(np.float32), points[:, 1].astype(np.float32)
    trace(figure, "scatter", column, x=x, y=y, mode="lines", line=line, hoverinfo="skip", name=name)
    if np.isfinite(points[-1]).all():
        end = points[-1]
        label(figure, float(end[0]), float(end[1]), name, T["ink-2"], column, xshift=7)


def _group(
    figure: Figure, points: np.ndarray, names: np.ndarray, style: tuple[str, theme.CategoryStyle], column: int
) -> None:
    group, look = style
    trace(
        figure,
        "scatter",
        column,
        x=points[:, 0].astype(np.float32),
        y=points[:, 1].astype(np.float32),
        mode="markers",
        name=group,
        text=names.tolist(),
        hovertemplate=f"%{{text}} {group}<extra></extra>",
        marker={"size": 8, "symbol": look.shape, "color": look.mark, "line": {"width": 1, "color": T["surface"]}},
        unselected={"marker": {"opacity": 0.18}},
    )


def _labels(
    figure: Figure, points: np.ndarray, groups: np.ndarray, styles: dict[str, theme.CategoryStyle], column: int
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
        place = {"xanchor": "center", "yanchor": "bottom", "yshift": 7}
        label(figure, float(x), float(y), f"<b>{name}</b>", styles[name].word, column, **place)
