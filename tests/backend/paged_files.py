"""Tiny checkpoints and tasks on them, run by a worker's own code with the model in memory or paged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.statistic import statistics
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint, inspect
from backend.paging.pager import Pager
from backend.runners import passes
from backend.runners.messages import CaptureTask, Message, ShardReady, ShardWork
from backend.runners.residents import Residents
from backend.settings import Paging, Settings
from backend.store.arrays import Arrays
from tests.backend import zoo
from tests.backend.tiny_olmoe import byte_tokenizer, prompts

EVERY = tuple(name for name, statistic in statistics().items() if "backward" not in statistic.needs)
FEW = ("prompt_counts", "token_routes", "router_sums", "contribution_sums", "routed_rows")
"""Of routes and of layers, sums and samples, with outputs observed in flight: what takes no second."""


def saved(kind: str, folder: Path) -> Checkpoint:
    """A tiny random model of this type with a byte tokenizer."""
    if not folder.exists():
        zoo.whole(kind, head=True).save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
    return read(folder)


def read(folder: Path) -> Checkpoint:
    """The identity of a folder."""
    return inspect(str(folder), Settings(extra_roots=(folder.parent,)))


def task(checkpoint: Checkpoint, names: tuple[str, ...] = FEW, batch_tokens: int = 60) -> CaptureTask:
    """Two shards of four prompts, in micro-batches of two."""
    rows = prompts(8).prompts
    works = tuple(
        ShardWork(rows[start : start + 4], {name: f"{name}-{start}" for name in names}, f"routes-{start}")
        for start in (0, 4)
    )
    return CaptureTask("t", checkpoint, CaptureOptions(batch_tokens=batch_tokens), works)


@dataclass
class Machine:
    """A worker's models and its store."""

    store: Path
    paging: Paging

    def __post_init__(self) -> None:
        self.arrays = Arrays(self.store)
        self.residents = Residents("cpu", 1 << 30, self.paging)

    def messages(self, asked: CaptureTask) -> Iterator[Message]:
        """As a worker sends them."""
        return passes.run(asked, self.residents, self.arrays)

    def run(self, asked: CaptureTask) -> list[Any]:
        """Of each shard: digests of its states and of its routes, tokens, notes. Equal digests: equal to the bit."""
        return [
            (
                {key: file.digest for key, (_, file) in ready.states.items()},
                ready.routes and ready.routes.digest,
                ready.tokens,
                ready.notes,
            )
            for ready in self.messages(asked)
            if isinstance(ready, ShardReady)
        ]

    def pager(self, checkpoint: Checkpoint) -> Pager:
        """What pages this checkpoint."""
        return self.residents.get(checkpoint).anatomy.pager
