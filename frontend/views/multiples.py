"""Small multiples over a run's steps: tiles by layer, one clock, first and last marked, and what a step slider moves.

Moving is a frame for each step, which plotly.js holds and shows without a request: see `assets/steps.js`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from frontend.clock import Clock
from frontend.figure import Figure
from frontend.views.marks import T, axes, canvas, label, nth, trace
from frontend.words import count

WIDTH = {12: 1000, 6: 480}
"""Pixels that a figure of so many columns has, about: how many tiles and ticks fit."""
LETTER, APART = 6, 8
"""Pixels of a letter of a tick, and between two ticks."""
FEW = 16
"""Experts up to which marks have their full size; more would cover each other."""
FIRST, LAST = "circle-open", "diamond"
"""Shapes of the first and the last step, in every figure of a run."""


class Multiples:
    """Tiles in reading order. What moves with the step is given to `move` as it is at each step."""

    def __init__(
        self, names: Sequence[str], clock: Clock, span: int, heights: tuple[int, int], shared: bool = False
    ) -> None:
        """`heights` are those of a tile and of the gap below it; `shared` axes are one for all tiles."""
        self.clock, self.span = clock, span
        self.columns = columns_of(len(names), span)
        self.rows = -(-len(names) // self.columns)
        self.tiles = range(1, len(names) + 1)
        self.figure = canvas(0)
        tile, gap = heights
        self._inner, self._moving = self.rows * tile + (self.rows - 1) * gap, []
        self._frames: list[list[dict[str, Any]]] = [[] for _ in clock.steps]
        for number in self.tiles:
            self._place(number, gap / max(self._inner, 1), shared)

    def _place(self, number: int, gap: float, shared: bool) -> None:
        row, column = divmod(number - 1, self.columns)
        beside = 0.1 / max(self.columns, 2)
        width, height = (1 - beside * (self.columns - 1)) / self.columns, (1 - gap * (self.rows - 1)) / self.rows
        left, top = column * (width + beside), 1 - row * (height + gap)
        alike = shared and number > 1
        across, up = ([min(max(end, 0.0), 1.0) for end in ends] for ends in ((left, left + width), (top - height, top)))
        matches = [{"matches": letter} if alike else {} for letter in "xy"]
        axes(self.figure, "x", number, domain=across, anchor=nth("y", number), **matches[0])
        axes(self.figure, "y", number, domain=up, anchor=nth("x", number), **matches[1])
        if shared and column:
            axes(self.figure, "y", number, showticklabels=False)

    def title(self, tile: int, text: str, current: bool) -> None:
        """A tile's name over its left corner; the current layer's in ink and bold."""
        across, up = nth("x", tile + 1), nth("y", tile + 1)
        place = {"xref": f"{across} domain", "yref": f"{up} domain", "yanchor": "bottom", "yshift": 3}
        label(self.figure, 0, 1, f"<b>{text}</b>" if current else text, T["ink"] if current else T["ink-2"], **place)

    def move(self, look: dict[str, Any], tile: int, at_each: Sequence[dict[str, Any]]) -> None:
        """A trace that is somewhere else at each step; it stands at the last one until a reader moves it."""
        self._moving.append(len(self.figure["data"]))
        trace(self.figure, "scatter", tile + 1, **look, **at_each[-1])
        for frame, told in zip(self._frames, at_each, strict=True):
            frame.append({"type": "scatter"} | told)

    def step_line(self, tile: int, low: float, high: float) -> None:
        """The dotted line of the step shown."""
        line = {"color": T["ink"], "width": 1, "dash": "1px,2px"}
        look = {"mode": "lines", "line": line, "hoverinfo": "skip", "name": "step shown"}
        self.move(look, tile, [{"x": [at, at], "y": [low, high]} for at in range(len(self.clock.steps))])

    def clock_axes(self) -> None:
        """The steps under each column of tiles; evenly spaced, for they are stored where much happens."""
        widest = LETTER * max(len(short(told)) for told in self.clock.told) + APART
        at = ticks(self.clock, int(WIDTH.get(self.span, WIDTH[6]) / self.columns / widest))
        axis = {"tickvals": at, "ticktext": [tick(self.clock, i) for i in at], "tickangle": 0}
        axes(self.figure, "x", **axis, range=[-0.35, self.clock.last + 0.35], showticklabels=False)
        for number in self.tiles[-self.columns :]:
            axes(self.figure, "x", number, showticklabels=True)

    def key(self, text: str, below: int = 36) -> None:
        """What the shapes mean, under the axes."""
        place = {"xref": "paper", "yref": "paper", "yanchor": "top", "yshift": -below, "align": "left"}
        label(self.figure, 0, 0, text, T["ink-2"], **place)

    def finished(self, **margin: int) -> Figure:
        """The figure with its frames and the number of steps that a slider may ask for."""
        sides = {"l": 48, "r": 16, "t": 26, "b": 42} | margin
        meta = {"height": self._inner + sides["t"] + sides["b"], "steps": len(self.clock.steps)}
        self.figure["layout"] = {"hovermode": "closest"} | self.figure["layout"] | {"margin": sides, "meta": meta}
        self.figure["frames"] = [
            {"name": str(at), "data": frame, "traces": self._moving} for at, frame in enumerate(self._frames)
        ]
        return self.figure


def columns_of(count: int, span: int) -> int:
    """Tiles in a row: wide plates fill their width, narrow ones are about square."""
    if span >= 12:
        most = 8 if count > 12 else 6
        return -(-count // -(-count // most)) if count > 5 else max(count, 1)
    return min(6, math.ceil(math.sqrt(count)))


def ticks(clock: Clock, most: int) -> list[int]:
    """Positions that carry a tick: the first, the last, and what finds room between them, evenly where that can be."""
    most = max(2, min(clock.last + 1, most))
    even = next(
        stride for stride in range(1, clock.last + 1) if clock.last % stride == 0 and clock.last // stride < most
    )
    if 2 * (clock.last // even + 1) > most:
        return list(range(0, clock.last + 1, even))
    return sorted({round(float(x)) for x in np.linspace(0, clock.last, most)})


def tick(clock: Clock, at: int) -> str:
    """A step on the axis; the first and the last say so."""
    end = "first" if at == 0 else "last" if at == clock.last else ""
    return f"{short(clock.told[at])}<br>{end}" if end else short(clock.told[at])


def short(told: str) -> str:
    """A step as an axis has room for: from a hundred thousand on in three figures. Hovering tells all of them."""
    number = told.replace(",", "")
    return count(int(number)) if number.isdigit() and int(number) >= 100_000 else told


def shapes(clock: Clock, plain: float = 4) -> dict[str, list]:
    """Marker shapes and sizes along a run: hollow where it starts, a diamond where it ends."""
    inner = len(clock.steps) - 2
    return {"symbol": [FIRST, *["circle"] * inner, LAST], "size": [8, *[plain] * inner, 9]}


def mark(size: int, experts: Sequence[str]) -> int:
    """A mark's size among so many experts."""
    return size if len(experts) <= FEW else max(3, size // 2)


def nearest(layer: int, labels: Sequence[str]) -> int:
    """The tile of the layer chosen above, or of the nearest there is."""
    return labels.index(str(layer)) if str(layer) in labels else min(layer, len(labels) - 1)
