"""What a cell of the table of plants can say of an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.analysis.plants import DEAD, TWIN, Planted

TOLERANCE = 1e-9
"""Sums in float64 of up to 10^3 terms, in any order: 1e-13, and 1e-9 leaves room for what is divided by small numbers.

Where a sample keeps a narrower type, its numbers are those that the type keeps, or the reading rounds to it too."""
GROUP = np.arange(6) // 3
ACROSS = GROUP[:, None] != GROUP


@dataclass(frozen=True)
class Seen:
    """An answer, the answer of the unplanted world, and both worlds."""

    values: np.ndarray
    facts: dict[str, Any]
    before: Callable[[], np.ndarray]
    axes: tuple[str, ...]
    world: Planted
    base: Planted
    number: Callable[[], np.ndarray]
    """What the measure's definition gives, read naively."""


@dataclass(frozen=True)
class Cell:
    """A check of one answer, and the knobs with which it was asked."""

    check: Callable[[Seen], None]
    knobs: dict[str, Any] = field(default_factory=dict)
    refused: bool = False

    def asked(self, **knobs):
        return dataclasses.replace(self, knobs=knobs)


def close(found, expected, tolerance=TOLERANCE):
    expected = np.broadcast_to(expected, np.shape(found))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def alike(found, other, tolerance=TOLERANCE):
    """Equal, and not for want of numbers."""
    assert np.isfinite(found).any()
    close(found, other, tolerance)


def at(place, number, tolerance=TOLERANCE):
    """This number at this place; a function takes the answer's worlds."""
    return Cell(lambda s: close(s.values[place], number(s) if callable(number) else number, tolerance))


def fact(name, number):
    return Cell(lambda s: close(s.facts[name], number(s) if callable(number) else number))


def both(*cells):
    """Several checks of one answer."""

    def check(seen):
        for cell in cells:
            cell.check(seen)

    return Cell(check)


def everywhere(number, tolerance=TOLERANCE):
    return at(..., number, tolerance)


def _same(seen):
    alike(seen.values, seen.before())


def _as_read(seen):
    close(seen.values, seen.number())


def _map_as_read(seen):
    """Principal components have no sign: each is turned as the number has it, in every layer that has its own frame."""
    number = seen.number()
    # The points of one frame: all axes but the first, or all.
    points = tuple(range(seen.axes[0] == "layer", number.ndim - 1))
    close(seen.values * np.sign(np.nansum(seen.values * number, points, keepdims=True)), number)


def _expert_axes(seen):
    return [i for i, name in enumerate(seen.axes) if name.removesuffix("_b") == "expert"]


def _by_expert(seen, axis, expert):
    """Cells of an expert; an axis may list the experts of several layers or checkpoints."""
    return seen.values.take(range(expert, seen.values.shape[axis], 6), axis)


def _twin(seen, tolerance=TOLERANCE):
    for axis in _expert_axes(seen):
        one, other = (_by_expert(seen, axis, expert) for expert in TWIN)
        if len(_expert_axes(seen)) > 1 and seen.axes[-1] == "expert_b":
            # Where the other axis is the pair itself, a matrix may set its diagonal apart.
            rest = seen.axes.index("expert" if seen.axes[axis] == "expert_b" else "expert_b")
            one, other = (np.delete(x, TWIN, rest) for x in (one, other))
        alike(one, other, tolerance)


def _dead(seen):
    dead = np.zeros(seen.values.shape, bool)
    for axis in _expert_axes(seen):
        place = [slice(None)] * dead.ndim
        place[axis] = slice(DEAD, None, 6)
        dead[tuple(place)] = True
    np.testing.assert_array_equal(np.isnan(seen.values), dead)


def _alike_experts(seen):
    place = tuple(slice(0, 1) if i in _expert_axes(seen) else slice(None) for i in range(seen.values.ndim))
    alike(seen.values, np.broadcast_to(seen.values[place], seen.values.shape))


def _own_like_own(seen):
    one, other = (seen.values[:, expert, expert] for expert in TWIN)
    alike(one, other)


ALL_ALIKE, OWN_LIKE_OWN = Cell(_alike_experts), Cell(_own_like_own)
SAME, SAME_EXPERTS, NAN_AT_THE_DEAD = Cell(_same), Cell(_twin), Cell(_dead)
REFUSED = Cell(lambda s: None, refused=True)
NUMBER, MAP = Cell(_as_read), Cell(_map_as_read)
"""The number of `naive.py`: what the definition gives, read in plain loops from inputs, weights and choices."""
SAME_EXPERTS_BY_ANGLE = Cell(lambda s: _twin(s, 1e-8))
GAUGE = {"common": SAME, "turned": SAME}
"""A vector that a softmax router ignores, and the names of the axes."""
