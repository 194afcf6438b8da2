"""Which architectures are read, and how well: the table that the tests measure, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Architecture:
    """One model type of transformers.

    Errors are bounds, powers of ten, relative in Frobenius norm: of the block's output recomputed from what the adapter
    reads, in float32, and of one expert's mean Jacobian in closed form, in float64 where the model computes in it.
    `remarks` says why where `supported` is false, and then there is nothing else.
    """

    type: str
    adapter: str | None
    supported: bool
    block_error: float | None
    jacobian_error: float | None
    remarks: str


@cache
def architectures() -> tuple[Architecture, ...]:
    """All that were measured, by type."""
    return tuple(Architecture(**row) for row in json.loads(FILE.read_text("utf-8")))


def architecture(*types: str) -> Architecture | None:
    """That of the first of these types which was measured."""
    known = {each.type: each for each in architectures()}
    return next((known[each] for each in types if each in known), None)
