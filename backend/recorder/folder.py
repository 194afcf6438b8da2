"""A run's folder: new, or the one that the run goes on with; never two runs in one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.errors import GeometryError
from backend.recorder.record import NAME, file_name, run_of

ABOUT = {"name", "every", "model_type", "layers", "experts", "top_k"}
SENT = "sent.txt"
"""Names of the records that a backend has taken, one a line."""


class FolderTaken(GeometryError):
    """Raised when a folder holds another run; the text says which step it is at, or in what it differs."""


def claim(folder: Path, about: Mapping[str, Any], first: int, rank: int) -> str:
    """Make the folder this run's; of a run that stands at step `first`, later records are removed: they come anew.

    Every process of a run asks before any of them records. Returned is the word its records tell the run by: that of
    the run that goes on, or a new one.

    Raises:
        FolderTaken: If it holds another run.
        BadRecord: If its last record cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "run.json"
    told = _told(file)
    if told is not None and not told.keys() >= ABOUT:
        raise FolderTaken(f"{file} is not a recorder's: something else lives in {folder}; name another folder")
    own = [step for name, step in _steps(folder) if name.endswith(f"-r{rank}.safetensors")]
    if own and not first:
        raise FolderTaken(
            f"{folder} holds a run already, recorded to step {max(own)}: name another folder; a run that goes on says "
            "at which step it stands (first=)"
        )
    run = secrets.token_hex(8)
    if first and own:
        _same(folder, told or {}, about)
        last = folder / file_name(max(own), rank)
        with last.open("rb") as file_of_last:
            run = run_of(file_of_last, last.name)
        _forget_after(folder, first)
    if told != about:
        partial = folder / f".run-{rank}.partial"
        partial.write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        partial.replace(file)
    return run


def _told(file: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _steps(folder: Path) -> Iterator[tuple[str, int]]:
    for file in folder.iterdir():
        if found := NAME.fullmatch(file.name):
            yield file.name, int(found[1])


def _same(folder: Path, told: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """A folder may be renamed; all else must be as it was."""
    differs = [
        f"{key} {told.get(key)}, not {about[key]}" for key in sorted(ABOUT - {"name"}) if told.get(key) != about[key]
    ]
    if differs:
        raise FolderTaken(f"{folder} holds another run ({'; '.join(differs)}): name another folder")


def _forget_after(folder: Path, first: int) -> None:
    again = {name for name, step in _steps(folder) if step > first}
    for name in again:
        (folder / name).unlink(missing_ok=True)
    marks = folder / SENT
    if again and marks.exists():
        kept = [name for name in marks.read_text("utf-8").split() if name not in again]
        marks.write_text("".join(f"{name}\n" for name in kept), "utf-8")
