"""Processes for runs side by side: one thread each, since a step of these models is too small to share."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # glibc hands each large tensor back to the system and then faults fresh pages in: a fifth of the time of a step.
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
}


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool of spawned processes that read the environment above when they start; a variable already set stands."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
