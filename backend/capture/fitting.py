"""Micro-batches that the device has no memory for, halved and run again, so that a pass goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from backend.capture.tokens import Encoded

Done = TypeVar("Done")

HALVED = (
    "the device had no memory for {size:,} tokens at once, so smaller batches were run: sums may differ by rounding, "
    "and routes where experts have a capacity or choose their tokens"
)


def fitting(
    batches: Iterable[list[Encoded]], work: Callable[[list[Encoded]], Done]
) -> Iterator[tuple[Done, tuple[str, ...]]]:
    """What `work` makes of each batch, in order, and a sentence where there was too little memory for one.

    Such a batch is halved and run anew, and later ones stay below its size.

    Raises:
        torch.OutOfMemoryError: If a single prompt is too much.
    """
    most, notes = float("inf"), ()
    for batch in batches:
        waiting = [batch]
        while waiting:
            part = waiting.pop(0)
            size, half = len(part) * max(map(len, part)), len(part) // 2
            done = _tried(work, part) if size < most or not half else None
            if done is not None:
                yield done, notes
                notes = ()
                continue
            if size < most:
                most, notes = size, (HALVED.format(size=size),)
            waiting[:0] = [part[:half], part[half:]]


def _tried(work: Callable[[list[Encoded]], Done], part: list[Encoded]) -> Done | None:
    """None for want of memory. What the pass had made is let go only here, after the error that holds its frames."""
    try:
        return work(part)
    except torch.OutOfMemoryError:
        if len(part) == 1:
            raise
    torch.cuda.empty_cache()
    return None
