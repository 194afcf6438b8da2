"""What a pass that was killed leaves, so that the next one goes on after the last layer that all prompts had left.

A folder: what each pass was given by that layer, the routing of the layers so far, and one file that says so, written
last. Embeddings, masks and positions are made again by the model's own code; that the layer to go on with is then given
what it was given before, to the last bit, is checked before it runs.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch

from backend.adapters.law import Checked
from backend.capture.assemble import Routed
from backend.paging.lockstep import Walk
from backend.paging.tree import Unkeepable, digest, packed, unpacked

DONE = "done.json"
ABANDONED_SECONDS = 7 * 24 * 3600.0
"""What nobody went on with for a week is removed when another pass begins."""


class Listens(Protocol):
    """What is kept of a micro-batch beside its pass."""

    routed: dict[int, Routed]


class Unfinished:
    """The folder of one pass. `done` is how many decoder layers it has behind it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._told = _read(folder / DONE)
        if not self._told:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def done(self) -> int:
        """Layers that need not run again."""
        return int(self._told.get("layers", 0))

    def keep(self, decoder: int, walks: Sequence[Walk], micros: Sequence[Listens], checks: Sequence[Checked]) -> None:
        """All walks have left this layer and wait before the next; where that cannot be kept, nothing is."""
        known = {n for micro in micros for n in micro.routed if not self._routed(n).exists()}
        for n in sorted(known):
            tensors = {
                f"{place}.{each.name}": getattr(micro.routed[n], each.name).cpu().contiguous()
                for place, micro in enumerate(micros)
                for each in fields(Routed)
            }
            safetensors.torch.save_file(tensors, self._routed(n))
        try:
            for place, walk in enumerate(walks):
                given: dict[str, torch.Tensor] = {}
                told = json.dumps(packed(walk.last, given))
                safetensors.torch.save_file(given, self._walk(decoder + 1, place), {"told": told})
        except Unkeepable:
            return
        told = {
            "layers": decoder + 1,
            "digests": [digest(walk.given) for walk in walks],
            "checks": [asdict(each) for each in checks],
        }
        draft = self.folder / f".{DONE}"
        draft.write_text(json.dumps(told), "utf-8")
        draft.replace(self.folder / DONE)
        for old in self.folder.glob(f"walk-{decoder}-*"):
            old.unlink()

    def restore(self, walks: Sequence[Walk], micros: Sequence[Listens], device: torch.device) -> list[Checked] | None:
        """Put walks and routing where they were; None, and an empty folder, where a file is missing or damaged."""
        try:
            for place, walk in enumerate(walks):
                with safetensors.safe_open(self._walk(self.done, place), "pt") as file:
                    told = json.loads(file.metadata()["told"])
                    walk.last = unpacked(told, {name: file.get_tensor(name) for name in file.keys()}, device)
            for path in self.folder.glob("routed-*"):
                kept, n = safetensors.torch.load_file(path), int(path.stem.partition("-")[2])
                for place, micro in enumerate(micros):
                    parts = {each.name: kept[f"{place}.{each.name}"].to(device) for each in fields(Routed)}
                    micro.routed[n] = Routed(**parts)
            if len(self._told["digests"]) != len(walks):
                raise ValueError("another number of micro-batches")
        except (OSError, KeyError, ValueError, safetensors.SafetensorError):
            self.clear()
            return None
        return [Checked(**(each | {"shared": _pair(each["shared"])})) for each in self._told["checks"]]

    def same(self, walks: Sequence[Walk]) -> bool:
        """Whether the next layer is given what it was given before; an empty folder if not."""
        if [digest(walk.given) for walk in walks] == self._told["digests"]:
            return True
        self.clear()
        return False

    def clear(self) -> None:
        """Begin anew."""
        self._told: dict[str, Any] = {}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """It is finished; what others abandoned goes too."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for other in self.folder.parent.glob("*"):
            with suppress(OSError):
                if time.time() - other.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)

    def _routed(self, n: int) -> Path:
        return self.folder / f"routed-{n}.safetensors"

    def _walk(self, layers: int, place: int) -> Path:
        return self.folder / f"walk-{layers}-{place}.safetensors"


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _pair(found: list[float] | None) -> tuple[float, float] | None:
    return None if found is None else (found[0], found[1])
