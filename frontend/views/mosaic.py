"""Matrices of all layers in ONE heatmap trace with one scale: a tile per layer, a band of tiles per side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.figure import Figure
from frontend.scales import Scale
from frontend.views.heatmap import _row
from frontend.views.marks import T, axes, canvas, label, shape, trace, veil
from frontend.views.side import LETTERS, Side
from frontend.words import number


def draw(sides: Sequence[Side], scale: Scale, layer: int) -> Figure:
    """Tiles in reading order, the current layer outlined, blank cells where a value is undefined."""
    layers = sides[0].answer.axes[0].labels
    n, m = (max(side.answer.values.shape[place] for side in sides) for place in (1, 2))
    columns = min(len(layers), 8)
    gap = max(1, round(m * 0.17)), max(2, round(n * 0.22))  # the lower gap holds the next row's titles
    z, corners = tiles([s.answer.values for s in sides], columns, gap)
    bands = -(-len(layers) // columns) * len(sides)
    figure = canvas(int(np.clip(1150 / columns, 120, 176)) * bands + 30, margin={"l": 8, "r": 8, "t": 4, "b": 4})
    trace(
        figure,
        "heatmap",
        z=scale.drawn(z),
        hoverongaps=False,
        customdata=_told(sides, corners, z.shape) if z.size < 40_000 else None,
        hovertemplate="%{customdata}<extra></extra>" if z.size < 40_000 else "%{z:.3g}<extra></extra>",
        **scale.heatmap(),
    )
    _dim(figure, sides, columns, gap)
    current = _row(layers, layer)
    for s, side in enumerate(sides):
        for i, name in enumerate(layers):
            r, c = corners[s][i]
            here = i == current
            title = f"layer {name}" if m >= 8 or columns <= 4 else name
            text = f"{_short(side)} · {title}" if i % columns == 0 and len(sides) > 1 else title
            label(
                figure,
                c - 0.5,
                r - 0.5,
                f"<b>{text}</b>" if here else text,
                T["ink"] if here else side.ink if i % columns == 0 else T["ink-3"],
                yanchor="bottom",
                yshift=1,
            )
            if here:
                ends = {"x0": c - 0.5, "x1": c + m - 0.5, "y0": r - 0.5, "y1": r + n - 0.5}
                shape(figure, "rect", 1, line={"color": T["ink"], "width": 1.5}, **ends)
    _frame(figure, z.shape, n)
    return figure


def _frame(figure: Figure, size: tuple[int, ...], n: int) -> None:
    axes(figure, "x", visible=False, range=[-1, size[1]], constrain="domain", constraintoward="left")
    rows = [size[0], -max(1.4, 0.16 * n)]
    axes(figure, "y", visible=False, range=rows, scaleanchor="x", constrain="domain", constraintoward="top")


def _dim(figure: Figure, sides: Sequence[Side], columns: int, gap: tuple[int, int]) -> None:
    if any(side.faded is not None for side in sides):
        dimmed = [np.zeros(s.answer.values.shape) if s.faded is None else s.faded for s in sides]
        veil(figure, tiles(dimmed, columns, gap)[0] == 1)


def _short(side: Side) -> str:
    return side.title.split(" ")[0] if side.role in LETTERS else side.title  # a whole name leaves its tile


def tiles(
    blocks: Sequence[np.ndarray], columns: int, gap: tuple[int, int]
) -> tuple[np.ndarray, list[list[tuple[int, int]]]]:
    """Blocks (side x layer x n x m) with NaN gutters (beside, below); returns the matrix and every tile's corner."""
    beside, below = gap
    layers, n, m = (max(block.shape[place] for block in blocks) for place in range(3))
    bands = -(-layers // columns)
    out = np.full((bands * len(blocks) * (n + below) - below, columns * (m + beside) - beside), np.nan)
    corners = [
        [((s * bands + i // columns) * (n + below), (i % columns) * (m + beside)) for i in range(layers)]
        for s in range(len(blocks))
    ]
    for side, block in zip(corners, blocks, strict=True):
        for (r, c), tile in zip(side, block, strict=True):
            out[r : r + len(tile), c : c + tile.shape[1]] = tile
    return out, corners


def _told(sides: Sequence[Side], corners: list[list[tuple[int, int]]], shape: tuple[int, ...]) -> list[list[str]]:
    out = np.full(shape, "", dtype=object)
    for side, places in zip(sides, corners, strict=True):
        layers, rows, columns = (a.labels for a in side.answer.axes)
        for i, (r, c) in enumerate(places):
            for j, k in np.ndindex(len(rows), len(columns)):
                value = number(float(side.answer.values[i, j, k]))
                out[r + j, c + k] = f"{value} · layer {layers[i]}, {rows[j]} × {columns[k]}"
    return out.tolist()
