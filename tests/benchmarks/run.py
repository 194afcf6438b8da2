"""`make bench`: every case of tests/benchmarks/bench_*.py, a table on the terminal and .bench/results.json.

Each case runs in a process of its own, so that peak memory is its own. Times are the best of a few runs: what the
machine can do, not what its other work leaves over. One thread on both sides: a loop has no more. Absolute times are
this machine's; the ratio is what travels.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.case import Case

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / ".bench/results.json"
MEGABYTE = 1e6


def cases() -> dict[str, Case]:
    """Every case by name, whatever file it lies in."""
    modules = [importlib.import_module(f"tests.benchmarks.{file.stem}") for file in sorted(FOLDER.glob("bench_*.py"))]
    return {case.name: case for module in modules for case in module.CASES}


def best(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Shortest of `repeats` runs in seconds, and the last answer."""
    seconds, answer = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        answer = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), answer


def peak() -> float:
    """Largest resident size so far, in MB (macOS counts bytes, Linux KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / MEGABYTE


def measure(name: str) -> dict[str, Any]:
    """One row: ours first, so that the peak (torch itself is some 300 MB of it) is not the other's."""
    case = cases()[name]
    torch.set_num_threads(1)
    race = case.prepare()
    race.ours()  # warm: allocator, threads, compiled kernels
    ours, mine = best(race.ours, case.repeats)
    memory = peak()
    other, theirs = best(race.other, case.repeats)
    race.same(mine, theirs)
    ratio = other / ours
    return {
        "name": name,
        "against": case.against,
        "ours_s": ours,
        "other_s": other,
        "ratio": ratio,
        "bar": case.bar,
        "met": ratio >= case.bar,
        "peak_mb": memory,
    }


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    verdict = "met" if row["met"] else "MISSED"
    return (
        f"{row['name']:<44} {row['ours_s']:>9.4f} {row['other_s']:>9.4f} {row['ratio']:>8.2f} {row['bar']:>6.2f} "
        f"{verdict:<6} {row['peak_mb']:>7.0f}  {row['against']}"
    )


def main() -> None:
    """Exit 1 if a bar is missed."""
    print(f"{'case':<44} {'ours s':>9} {'other s':>9} {'ratio':>8} {'bar':>6} {'':<6} {'peak MB':>7}  against")
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in cases():
            rows.append(pool.apply(measure, (name,)))
            print(line(rows[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if all(row["met"] for row in rows) else 1)


if __name__ == "__main__":
    main()
