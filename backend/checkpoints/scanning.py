"""The checkpoints that lie under the roots: RUN/STEP, named as `labels` reads it, or any folder with a model in it."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from backend.checkpoints.digests import Digests
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.source import read_folder, run_and_label
from backend.errors import Refusal


def scan(roots: tuple[Path, ...], digests: Digests | None = None) -> list[Checkpoint]:
    """Every checkpoint, sorted by run and step; one that cannot be used is listed with its `error`."""
    digests = digests or Digests()
    found: dict[str, Checkpoint] = {}
    for root in roots:
        for folder in _folders(root):
            checkpoint = _read(folder, _seen(folder), roots, digests)
            taken = found.setdefault(checkpoint.id, checkpoint)
            if taken is not checkpoint and taken.folder != checkpoint.folder:
                name = unique(checkpoint.id, set(found))
                found[name] = replace(checkpoint, id=name)
    return sorted(found.values(), key=lambda c: (c.run or c.id, c.place, c.id))


def unique(name: str, taken: set[str]) -> str:
    """The name, or the first of name-2, name-3, ... that is free."""
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


def _folders(root: Path) -> list[Path]:
    found = []
    for child in _subfolders(root):
        steps = [step for step in _subfolders(child) if run_and_label(step)[0] or _is_model(step)]
        found += [child] if _is_model(child) else steps
    return found


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def _is_model(folder: Path) -> bool:
    """Whether it looks like one, so that a broken one is told about and any other folder is passed over."""
    try:
        return any(p.name == "config.json" or p.suffix in (".safetensors", ".bin", ".pt") for p in folder.iterdir())
    except OSError:
        return False


def _seen(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What the folder's files look like from outside: a change of any of them makes the folder be read again."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return ()
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in found))


@lru_cache(maxsize=4096)
def _read(folder: Path, seen: tuple, roots: tuple[Path, ...], digests: Digests) -> Checkpoint:
    try:
        return read_folder(folder, roots, digests)
    except (Refusal, OSError) as error:
        run, label = run_and_label(folder)
        return Checkpoint(
            id=f"{run}/{folder.name}" if run else folder.name,
            source=str(folder),
            folder=str(folder.resolve()),
            run=run,
            step=label.step if label else None,
            stage=label.stage if label else None,
            error=str(error),
        )
