"""`make bench`: every case of tests/benchmarks/bench_*.py, a table on the terminal and .bench/results.json.

Each case runs in a process of its own, so that peak memory is its own. Both sides run in turn, and the ratio is the
median over these pairs. One thread on both sides: a loop has no more. Absolute times are this machine's; the ratio is
what travels.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scipy.stats import binom
from threadpoolctl import threadpool_limits

from tests.benchmarks.case import Case, Race

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / ".bench/results.json"
MEGABYTE = 1e6


def cases() -> dict[str, Case]:
    """Every case by name, whatever file it lies in."""
    modules = [importlib.import_module(f"tests.benchmarks.{file.stem}") for file in sorted(FOLDER.glob("bench_*.py"))]
    return {case.name: case for module in modules for case in module.CASES}


def pairs(race: Race, repeats: int) -> tuple[list[tuple[float, float]], Any, Any, float]:
    """Both sides in turn, so that other work on the machine slows both; times, last answers, and our peak memory."""
    times, mine = [], race.ours()  # warm: allocator, threads, compiled kernels
    memory = peak()
    theirs = race.other()
    for _ in range(repeats):
        start = time.perf_counter()
        mine = race.ours()
        between = time.perf_counter()
        theirs = race.other()
        times.append((between - start, (time.perf_counter() - between) * race.times))
    return times, mine, theirs, memory


def interval(ratios: list[float]) -> tuple[float, float]:
    """Order statistics around the median at 95 % (binomial); the extremes where the runs are too few for that."""
    count = len(ratios)
    low, high = binom.interval(0.95, count, 0.5)
    ordered = sorted(ratios)
    return ordered[max(int(low) - 1, 0)], ordered[min(int(high), count - 1)]


def peak() -> float:
    """Largest resident size so far, in MB (macOS counts bytes, Linux KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / MEGABYTE


def measure(name: str) -> dict[str, Any]:
    """One row. Ours is first, so that the peak (torch itself is some 300 MB of it) is not the other's."""
    case = cases()[name]
    torch.set_num_threads(1)
    race = case.prepare()
    with threadpool_limits(1):  # numpy's and scipy's own BLAS, whose threads get in each other's way in a loop
        times, mine, theirs, memory = pairs(race, case.repeats)
    race.same(mine, theirs)
    ratios = [ours / other if case.overhead else other / ours for ours, other in times]
    ratio, (low, high) = median(ratios), interval(ratios)
    return {
        "name": name,
        "against": case.against,
        "ours_s": median(ours for ours, _ in times),
        "other_s": median(other for _, other in times),
        "ratio": ratio,
        "low": low,
        "high": high,
        "bar": case.bar,
        "met": met(case, ratio, low),
        "peak_mb": memory,
    }


def met(case: Case, ratio: float, low: float) -> bool:
    """Whether the claim holds; a case without a bar claims nothing."""
    if case.bar is None:
        return True
    if not case.overhead:
        return ratio >= case.bar
    return ratio <= case.bar and (case.lower_end is None or low <= case.lower_end)


def gemm_rate() -> str:
    """This machine's own rate of matrix products, which no measure can beat."""
    torch.set_num_threads(1)
    told = []
    for dtype in (torch.float32, torch.float64):
        a = torch.rand(1024, 1024, dtype=dtype)
        runs = []
        for _ in range(6):
            start = time.perf_counter()
            torch.mm(a, a)
            runs.append(time.perf_counter() - start)
        told.append(f"{2 * 1024**3 / median(runs) / 1e9:.0f} GFLOP/s in {str(dtype).removeprefix('torch.')}")
    return ", ".join(told)


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    verdict = "" if row["bar"] is None else "met" if row["met"] else "MISSED"
    bar = "" if row["bar"] is None else f"{row['bar']:.2f}"
    return (
        f"{row['name']:<52} {row['ours_s']:>9.4f} {row['other_s']:>9.4f} {row['ratio']:>8.2f} "
        f"{row['low']:>8.2f} {row['high']:>8.2f} {bar:>7} {verdict:<6} {row['peak_mb']:>7.0f}  {row['against']}"
    )


def main() -> None:
    """Exit 1 if a bar is missed."""
    print(f"one thread; matrix products of 1024 x 1024: {gemm_rate()}")
    head = f"{'case':<52} {'ours s':>9} {'other s':>9} {'ratio':>8} {'low':>8} {'high':>8} {'bar':>7} {'':<6} "
    print(f"{head}{'peak MB':>7}  against")
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
