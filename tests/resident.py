"""Memory this process holds now: unlike its peak, it shows what is kept after something larger was freed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATM = Path("/proc/self/statm")
PAUSE = 0.002


def resident_bytes() -> int:
    """Pages in memory, the second number of Linux's statm."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def grown_bytes() -> Iterator[list[int]]:
    """What the block held beside what was there before it, sampled all along: the largest is last when it ends."""
    before, samples, ended = resident_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(PAUSE):
            samples.append(resident_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield samples
    finally:
        ended.set()
        watcher.join()
        samples.append(resident_bytes() - before)
        samples.sort()
