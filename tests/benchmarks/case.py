"""One benchmark: our way and the plain way to the same numbers, on the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Race:
    """Two ready-to-run functions over one prepared input; `same` raises if their answers differ."""

    ours: Callable[[], Any]
    other: Callable[[], Any]
    same: Callable[[Any, Any], None]


@dataclass(frozen=True)
class Case:
    """`bar` is the least ratio other/ours that counts as met; `prepare` builds the input outside the clock."""

    name: str
    against: str
    bar: float
    prepare: Callable[[], Race]
    repeats: int = 3
