"""One benchmark: our way and the plain way to the same numbers, on the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Race:
    """Two ready-to-run functions over one prepared input; `same` raises if their answers differ.

    `times` is said in the case's text wherever it is not 1: the other side does that part of the work, and its time is
    multiplied.
    """

    ours: Callable[[], Any]
    other: Callable[[], Any]
    same: Callable[[Any, Any], None]
    times: float = 1.0


@dataclass(frozen=True)
class Case:
    """`bar` is the least ratio other/ours that counts as met; None: a figure without a claim.

    With `overhead` the ratio is ours/other, the price of doing more than the plain way does, and the bar is the most it
    may be; `lower_end` is the most that the lower end of its interval may be. `prepare` builds the input outside the
    clock.
    """

    name: str
    against: str
    bar: float | None
    prepare: Callable[[], Race]
    repeats: int = 5
    overhead: bool = False
    lower_end: float | None = None
