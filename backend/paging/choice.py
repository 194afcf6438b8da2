"""How a checkpoint is held: whole on its device, spread over several, or one layer at a time; and what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from backend.checkpoints.identity import Checkpoint
from backend.settings import Paging

IN_MEMORY = 3
"""Layers' worth of weights at once at most: the one that runs or is converted, and what that is made from."""
ROOM = 4
"""What waits before a layer, of all prompts, may take this part of the memory that models and passes may take."""
WEIGHTS_SHARE = 0.8
"""Share of an accelerator that weights may take; the rest is for batches. A guess: no card was there to try it on."""

Held = Literal["resident", "device_map", "paged"]
"""Whole on its device, spread over several devices, or one decoder layer at a time."""


def pages(checkpoint: Checkpoint, paging: Paging, budget: int) -> bool:
    """True if this checkpoint is paged: `auto` pages what does not fit the memory that models may take."""
    if checkpoint.trace is not None or paging == "never":
        return False
    return paging == "always" or checkpoint.memory_bytes > budget


def places(
    checkpoint: Checkpoint, paging: Paging, budget: int, device: str, accelerators: Sequence[int]
) -> dict[int | str, int] | None:
    """Bytes of weights that each device may take, where the model's own does not take them all; None where it does.

    The model's own accelerator comes first, the CPU last: a layer there is slow, and right. What the CPU's memory
    would not take is paged.
    """
    if not accelerators or checkpoint.trace or pages(checkpoint, paging, budget):
        return None
    own = number(device)
    if checkpoint.memory_bytes <= accelerators[own] * WEIGHTS_SHARE:
        return None
    order = [own, *(n for n in range(len(accelerators)) if n != own)]
    return {**{n: int(accelerators[n] * WEIGHTS_SHARE) for n in order}, "cpu": budget}


def number(device: str) -> int:
    """Which accelerator `cuda:N` is; the first where it does not say."""
    return int(device.partition(":")[2] or 0)


def weights_bytes(checkpoint: Checkpoint, paging: Paging, budget: int) -> int:
    """What its weights take in memory: all of them, or the few layers at a time of one that is paged.

    Of that one's tables outside of the layers nothing is known before its files are read; they come on top.
    """
    if not pages(checkpoint, paging, budget):
        return checkpoint.memory_bytes
    return min(checkpoint.memory_bytes, checkpoint.memory_bytes * IN_MEMORY // max(checkpoint.layers, 1))
