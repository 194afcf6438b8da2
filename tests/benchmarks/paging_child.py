"""One side of the paging benchmark: `paging_child.py always|never FOLDER` runs the prompts for each line it reads."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from analysis.statistic import get
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint, inspect
from backend.paging.anatomy import PagedAnatomy
from backend.paging.tree import digest
from backend.prices import LIVE_COPIES
from backend.prompts import Prompt
from backend.runners import passes
from backend.runners.messages import CaptureTask, ShardReady, ShardWork
from backend.runners.residents import Residents
from backend.settings import Settings
from backend.store.arrays import Arrays

SHARDS, PROMPTS, LENGTH, BATCH = 2, 8, 64, 512
WANTED = ("prompt_counts", "coactivation_counts", "router_sums")


class Peak(threading.Thread):
    """The most memory this process has had that is no file's."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.start()

    def run(self) -> None:
        """Look every few milliseconds."""
        while True:
            self.most = max(self.most, status("RssAnon"))
            time.sleep(0.005)


def status(name: str) -> int:
    """Bytes of this process by the kernel's own account."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def task(checkpoint: Checkpoint) -> CaptureTask:
    """Two shards of prompts of equal length, in micro-batches of eight."""
    works = []
    for shard in range(SHARDS):
        texts = [(chr(97 + n) + chr(65 + shard)) * (LENGTH // 2) for n in range(PROMPTS)]
        rows = [Prompt(f"p{shard}-{n}", text, "none") for n, text in enumerate(texts)]
        works.append(ShardWork(tuple(rows), {name: f"{name}-{shard}" for name in WANTED}, f"routes-{shard}"))
    return CaptureTask("bench", checkpoint, CaptureOptions(batch_tokens=BATCH), tuple(works))


def evict(folder: Path) -> None:
    """The checkpoint's files leave the page cache."""
    for path in folder.glob("*.safetensors"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_all(folder: Path) -> None:
    """Read every byte once, into memory that is used again."""
    room = bytearray(16 << 20)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass


def run(mode: str, checkpoint: Checkpoint, residents: Residents, peak: Peak, base: int) -> dict[str, Any]:
    """One run, told."""
    folder = Path(checkpoint.folder)
    evict(folder)
    resident = residents.get(checkpoint)
    pager = resident.anatomy.pager if isinstance(resident.anatomy, PagedAnatomy) else None
    if pager is None:
        read_all(folder)
    else:
        pager.files.bytes, pager.files.seconds, pager.fuse_seconds = 0, 0.0, 0.0
        pager.files.times.clear()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as store:
        arrays = Arrays(Path(store))
        found = [m for m in passes.run(task(checkpoint), residents, arrays) if isinstance(m, ShardReady)]
        seconds = time.perf_counter() - start
        states = [arrays.get_state(file) for each in found for _, file in each.states.values()]
    told: dict[str, Any] = {"digests": by_layer(states), "seconds": seconds}
    if pager is not None:
        told |= {
            "peak": peak.most,
            "base": base,
            "limit": resource.getrlimit(resource.RLIMIT_DATA)[0],
            "outside": sum(p.numel() * p.element_size() for p in pager.model.parameters() if not p.is_meta),
            "layer": pager.layer_bytes(),
            "activations": activations(resident),
            "bytes": pager.files.bytes,
            "layer_bytes_all": pager.layer_bytes() * len(pager.layers),
            "times": sorted(set(pager.files.times.values())),
            "read_seconds": pager.files.seconds,
            "fuse_seconds": pager.fuse_seconds,
        }
    return told


def by_layer(states: list[Any]) -> list[str]:
    """A digest of each layer of these states, in an order that is not that of a process's sets."""
    ordered = sorted(states, key=lambda state: state.statistic)
    arrays = [
        (array, get(state.statistic).arrays[name].axes.index("layer"))
        for state in ordered
        for name, array in sorted(state.arrays.items())
        if "layer" in get(state.statistic).arrays[name].axes
    ]
    layers = range(len(states[0].shape.layers))
    return [digest([array.select(axis, layer) for array, axis in arrays]) for layer in layers]


def activations(resident: Any) -> int:
    """One micro-batch as the planner prices it, what waits before a layer, and two shards' states of one layer."""
    shape = resident.anatomy.shape
    width = shape.model + shape.experts + shape.top_k * shape.hidden
    waiting = SHARDS * PROMPTS * LENGTH * (3 * shape.model * 4 + len(shape.layers) * 16 * shape.top_k)
    states = sum(get(name).bytes(shape, PROMPTS, PROMPTS * LENGTH) for name in WANTED)
    return BATCH * width * 4 * LIVE_COPIES + waiting + SHARDS * states


def main(mode: str, folder: Path) -> None:
    """Ready, then a line for each line."""
    torch.set_num_threads(1)
    checkpoint = inspect(str(folder), Settings(extra_roots=(folder.parent,)))
    base, peak = status("RssAnon"), Peak()
    if mode == "always":
        small = status("VmData") + 6 * checkpoint.memory_bytes // checkpoint.layers
        limit = checkpoint.memory_bytes // 4 if checkpoint.memory_bytes >= 8e9 else small
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    residents = Residents("cpu", 1 << 40, "always" if mode == "always" else "never")
    residents.get(checkpoint)
    print("{}", flush=True)
    for _ in sys.stdin:
        print(json.dumps(run(mode, checkpoint, residents, peak, base)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
