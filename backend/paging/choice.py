"""Whether a checkpoint is run one layer at a time, and what that takes of memory."""

from __future__ import annotations

from backend.checkpoints.identity import Checkpoint
from backend.settings import Paging

IN_MEMORY = 3
"""Layers' worth of weights at once at most: the one that runs or is converted, and what that is made from."""
ROOM = 4
"""What waits before a layer, of all prompts, may take this part of the memory that models and passes may take."""


def pages(checkpoint: Checkpoint, paging: Paging, budget: int) -> bool:
    """True if this checkpoint is paged: `auto` pages what does not fit the memory that models may take."""
    if checkpoint.trace is not None or paging == "never":
        return False
    return paging == "always" or checkpoint.memory_bytes > budget


def weights_bytes(checkpoint: Checkpoint, paging: Paging, budget: int) -> int:
    """What its weights take in memory: all of them, or the few layers at a time of one that is paged.

    Of that one's tables outside of the layers nothing is known before its files are read; they come on top.
    """
    if not pages(checkpoint, paging, budget):
        return checkpoint.memory_bytes
    return min(checkpoint.memory_bytes, checkpoint.memory_bytes * IN_MEMORY // max(checkpoint.layers, 1))
