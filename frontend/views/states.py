"""Which experts are in use at each step: a tile by layer, a row by expert, births and deaths marked by shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.clock import Clock
from frontend.figure import Figure
from frontend.views.marks import T, axes, sparse, trace
from frontend.views.multiples import FEW, Multiples, mark, nearest
from frontend.views.side import Side

ROW, GAP = 13, 40
BORN, DIED = "triangle-up", "x"


def draw(sides: Sequence[Side], layer: int, clock: Clock, span: int) -> Figure:
    """A filled cell is an expert in use; undefined cells stay blank."""
    answer = sides[0].answer
    layers, experts = answer.axes[1].labels, answer.axes[2].labels
    tall = min(280, max(110, ROW * len(experts)))
    tiles = Multiples(layers, clock, span, (tall, GAP), shared=True)
    for at, name in enumerate(layers):
        alive = answer.values[:, at]
        tiles.title(at, f"layer {name}: {_count(alive[-1])} / {len(experts)}", at == nearest(layer, layers))
        _cells(tiles, at, alive, experts)
        _changes(tiles, at, alive, experts)
        tiles.step_line(at, -0.5, len(experts) - 0.5)
    tiles.clock_axes()
    rows, names = sparse(experts, 8)
    axes(tiles.figure, "y", tickvals=rows, ticktext=names, range=[len(experts) - 0.5, -0.5])
    tiles.key(f"filled: in use (count: last step), by {clock.title}<br>▲ born   ✕ died   ┊ the step shown")
    return tiles.finished(b=76)


def changes(alive: np.ndarray) -> np.ndarray:
    """+1 where an expert was not in use a step before and now is, -1 for the reverse, along the first axis."""
    return np.nan_to_num(np.diff(alive, axis=0))


def _cells(tiles: Multiples, at: int, alive: np.ndarray, experts: Sequence[str]) -> None:
    words = [
        [f"{e}, {tiles.clock.words(s)}: {_word(alive[s, i])}" for s in range(len(alive))] for i, e in enumerate(experts)
    ]
    trace(
        tiles.figure,
        "heatmap",
        at + 1,
        z=alive.T.astype(np.float32),
        zmin=0,
        zmax=1,
        showscale=False,
        colorscale=[[0, T["surface"]], [1, T["mag-2"]]],
        xgap=2,
        ygap=2 if len(experts) <= FEW else 1,
        hoverongaps=False,
        customdata=words,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _changes(tiles: Multiples, at: int, alive: np.ndarray, experts: Sequence[str]) -> None:
    moved = changes(alive)
    for sign, symbol, word in ((1, BORN, "born"), (-1, DIED, "died")):
        step, expert = np.nonzero(moved == sign)
        if not len(step):
            continue
        trace(
            tiles.figure,
            "scatter",
            at + 1,
            x=(step + 1).astype(np.int32),
            y=expert.astype(np.int32),
            mode="markers",
            name=word,
            marker={
                "symbol": symbol,
                "size": mark(9, experts),
                "color": T["ink"],
                "line": {"width": 1, "color": T["surface"]},
            },
            text=[
                f"{experts[int(e)]} {word} by {tiles.clock.words(int(s) + 1)}"
                for s, e in zip(step, expert, strict=True)
            ],
            hovertemplate="%{text}<extra></extra>",
        )


def _count(alive: np.ndarray) -> str:
    return f"{int(np.nansum(alive))}" if np.isfinite(alive).any() else "undefined"


def _word(value: float) -> str:
    return "undefined" if np.isnan(value) else "in use" if value else "not in use"
