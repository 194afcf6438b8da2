"""The checkpoints that lie under the roots: RUN/STEP, named as `labels` reads it, or any folder with a model in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backend.checkpoints.digests import Digests
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.remembered import Remembered
from backend.checkpoints.source import read_folder, run_and_label
from backend.errors import Refusal


def scan(
    roots: tuple[Path, ...], digests: Digests | None = None, remembered: Remembered | None = None
) -> list[Checkpoint]:
    """Every checkpoint, sorted by run and step; one that cannot be used is listed with its `error`."""
    digests, remembered = digests or Digests(), remembered or Remembered()
    found: dict[str, Checkpoint] = {}
    for root in roots:
        for folder in _folders(root):
            checkpoint = _read(folder, roots, digests, remembered)
            taken = found.setdefault(checkpoint.id, checkpoint)
            if taken is not checkpoint and taken.folder != checkpoint.folder:
                name = unique(checkpoint.id, set(found))
                found[name] = replace(checkpoint, id=name)
    remembered.save()
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


def _read(folder: Path, roots: tuple[Path, ...], digests: Digests, remembered: Remembered) -> Checkpoint:
    return remembered.read(folder, roots, lambda: _read_anew(folder, roots, digests))


def _read_anew(folder: Path, roots: tuple[Path, ...], digests: Digests) -> Checkpoint:
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
