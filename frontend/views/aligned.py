"""Sides of different depth on one axis: a layer stands beside the same of the others, blank where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frontend.answer import Band
from frontend.views.marks import positions
from frontend.views.side import Side


def aligned(sides: Sequence[Side]) -> Sequence[Side]:
    """The same sides, their first axis holding every label that any of them has."""
    labels = [side.answer.axes[0].labels for side in sides if side.answer.axes]
    if len(set(labels)) < 2:
        return sides
    every = tuple(dict.fromkeys(name for one in labels for name in one))
    at = positions(every)
    if at is not None:
        every = tuple(every[i] for i in np.argsort(at, kind="stable"))
    return [_on(side, every) for side in sides]


def _on(side: Side, every: tuple[str, ...]) -> Side:
    answer = side.answer
    first, *others = answer.axes
    rows = [first.labels.index(name) if name in first.labels else -1 for name in every]

    def spaced(part: np.ndarray) -> np.ndarray:
        if not np.ndim(part):  # one bound for all holds for what is blank too
            return part
        whole = np.broadcast_to(part, answer.values.shape)
        blank = np.full(whole.shape[1:], np.nan)
        return np.stack([whole[row] if row >= 0 else blank for row in rows])

    def band(given: Band | None) -> Band | None:
        return given and given.moved(spaced)

    groups = first.groups and tuple(first.groups[row] if row >= 0 else "" for row in rows)
    axes = (replace(first, labels=every, groups=groups), *others)
    parts = {"values": spaced(answer.values), "null": band(answer.null), "interval": band(answer.interval)}
    return replace(side, answer=replace(answer, axes=axes, **parts))
