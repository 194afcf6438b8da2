"""From a checkpoint's identity to a model that is paged, under the same conditions as any load."""

from __future__ import annotations

from pathlib import Path

from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.loading import first_line, held_as
from backend.checkpoints.source import current_stamp
from backend.errors import Conflict, Refusal
from backend.paging.pager import Pager


def open_paged(checkpoint: Checkpoint, device: str) -> Pager:
    """The checkpoint with its layers on disk.

    Raises:
        Refusal: It cannot be loaded.
        Unpageable: Not one layer at a time.
        Conflict: Its files changed since its headers were read.
    """
    if checkpoint.error:
        raise Refusal(checkpoint.error)
    folder = Path(checkpoint.folder)
    try:
        pager = Pager(folder, device, checkpoint.id, held_as(checkpoint))
    except (OSError, RuntimeError, KeyError, ImportError) as error:
        raise Refusal(f"transformers could not load {checkpoint.id}: {first_line(error)}") from error
    if current_stamp(folder) != checkpoint.stamp:
        raise Conflict(f"The files of {checkpoint.id} changed while it was asked about; ask again.")
    return pager
