"""The runs that ship in data/checkpoints, from settings written here: one command makes them all again."""

import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path

from backend.lab.settings import RunSettings
from backend.lab.train import finished, train
from backend.lab.workers import worker_pool

STEPS = 6000
STORED = (0, 20, 80, 320, 1000, 3000, STEPS)
START, LAST = (f"step-{step:05d}" for step in (STORED[0], STEPS))
"""Names of the first and the last stored step of those of seed 0."""

# Speeds: the choice of `grid.chosen` on data/checkpoints/balancing-grid.jsonl.
_BASE = RunSettings(router="unbalanced", seed=0, size="s64", steps=STEPS, stored=STORED)
_SECOND = replace(_BASE, seed=1, size="s32", steps=2 * STEPS, stored=(*STORED, 2 * STEPS))
SHIPPED: Mapping[str, RunSettings] = {
    "aux": replace(_BASE, router="softmax_aux", balancing=0.03),
    "free": replace(_BASE, router="loss_free", balancing=0.001),
    "kmeans": replace(_BASE, router="kmeans", balancing=0.001),
    "none": _BASE,
    "soft": replace(_BASE, router="soft"),
    "dense": replace(_BASE, router="dense"),
    "aux-s1": replace(_SECOND, router="softmax_aux", balancing=0.03),
    "free-s1": replace(_SECOND, router="loss_free", balancing=0.001),
}


def ship(corpus: Path, checkpoints: Path, workers: int = 2, names: Collection[str] = tuple(SHIPPED)) -> Iterator[str]:
    """Train each of these runs that `checkpoints` does not hold to its end; names each as it ends.

    A run half done, or done with other settings, is thrown away and trained anew.
    """
    waiting = [name for name in names if not finished(SHIPPED[name], checkpoints / name)]
    with worker_pool(workers) as pool:
        running = {pool.submit(_fresh, SHIPPED[name], corpus, checkpoints / name): name for name in waiting}
        for done in as_completed(running):
            done.result()
            yield running[done]


def _fresh(settings: RunSettings, corpus: Path, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    train(settings, corpus, out)
