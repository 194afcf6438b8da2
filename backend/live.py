"""Training runs that a recorder watches: their records as they come in, and the health that is read off them."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
from pathlib import Path
from typing import Any

from backend.errors import Conflict, NotFound, Refusal
from backend.recorder.folder import ABOUT
from backend.recorder.health import TRAINERS, UNTOLD, timeline
from backend.recorder.record import NAME, BadRecord, merged, read, run_of
from backend.settings import Settings

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
FREE = "Give the new run's folder another name, or remove what is here (DELETE /api/v1/live/%s)."


class LiveRuns:
    """Runs posted to this service, and those whose folder lies in `data/runs`."""

    def __init__(self, settings: Settings):
        self._own, self._found = settings.store / "live", settings.own_runs
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[tuple[str, int], ...], list[dict[str, Any]]]] = {}

    def list(self) -> list[dict[str, Any]]:
        """Name, sizes and last recorded step of every run, the one heard of last first."""
        told = []
        for folder in self._folders().values():
            files = _records(folder)
            if files:
                last = max(int(NAME.fullmatch(file.name)[1]) for file in files)  # type: ignore[index]
                heard = max(file.stat().st_mtime for file in files)
                told.append(_about(folder) | {"name": folder.name, "last_step": last, "heard": heard})
        return sorted(told, key=lambda run: -run["heard"])

    def one(self, name: str) -> dict[str, Any]:
        """A run with a point for each recorded step; undefined numbers are None."""
        folder = self._folders().get(name)
        if folder is None:
            raise NotFound(f"No run {name!r} has been recorded.", sorted(self._folders()))
        return _about(folder) | {"name": name, "points": self._points(folder), "trainers": TRAINERS, "untold": UNTOLD}

    def take(self, name: str, file: str, data: bytes) -> None:
        """Keep what a recorder sent; the same file twice is one.

        Raises:
            Refusal: It is no record, or one of another model than the run's.
            Conflict: It is of another run than the records that are here under this name.
        """
        if not RUN.fullmatch(name):
            raise Refusal(f"{name!r} cannot name a run: letters, digits, dots, dashes and underscores, 80 at most.")
        folder = self._own / name
        if file == "run.json":
            _refuse_other_sizes(folder, _json(data, f"{name}/run.json"))
        else:
            told = _about(folder) if (folder / "run.json").is_file() else None
            if told is None:
                raise Refusal(f"{name} has told nothing of its model yet: send its run.json first.")
            record = read(data, file)
            sizes = tuple(record.sums["selected"].shape)
            if sizes != (len(told["layers"]), told["experts"]):
                raise BadRecord(
                    f"{file} is of {sizes[0]} layers of {sizes[1]} experts; {name} has {len(told['layers'])} of "
                    f"{told['experts']}. Another model needs a run of another name."
                )
            _refuse_another(folder, file, record.run)
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{file}.partial"
        partial.write_bytes(data)
        partial.replace(folder / file)

    def forget(self, name: str) -> None:
        """Remove what was posted of a run; a folder in `data/runs` is its owner's."""
        if name not in {p.name for p in self._own.glob("*")}:
            raise NotFound(f"No run {name!r} has been posted here.")
        shutil.rmtree(self._own / name)

    def _folders(self) -> dict[str, Path]:
        """A posted run stands before a folder of the same name."""
        roots = (self._found, self._own)
        return {file.parent.name: file.parent for root in roots for file in root.glob("*/run.json") if _is_live(file)}

    def _points(self, folder: Path) -> list[dict[str, Any]]:
        files = _records(folder)
        seen = tuple((file.name, file.stat().st_size) for file in files)
        with self._lock:
            kept = self._read.get(folder)
            if kept is None or kept[0] != seen:
                kept = (seen, [_plain(point) for point in timeline(merged(files))])
                self._read[folder] = kept
            return kept[1]


def _records(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if NAME.fullmatch(file.name))


def _refuse_other_sizes(folder: Path, about: dict[str, Any]) -> None:
    if not folder.is_dir() or not _records(folder):
        return
    known = _about(folder)
    differs = [f"{key} {known[key]}, not {about[key]}" for key in sorted(ABOUT) if known[key] != about[key]]
    if differs:
        raise Conflict(f"{folder.name} has records of another run here ({'; '.join(differs)}). {FREE % folder.name}")


def _refuse_another(folder: Path, file: str, run: str) -> None:
    """Each process of a run has a word of its own, so only records of one process tell two runs apart."""
    of_process = file.partition("-r")[2]
    kept = next((each for each in _records(folder) if each.name.partition("-r")[2] == of_process), None)
    if kept is None:
        return
    with kept.open("rb") as known:
        if run_of(known, kept.name) != run:
            raise Conflict(f"{file} is of another run than {folder.name}'s records here. {FREE % folder.name}")


def _is_live(file: Path) -> bool:
    """Runs of the lab have a run.json too, of other contents."""
    try:
        return ABOUT <= json.loads(file.read_text("utf-8")).keys()
    except (OSError, ValueError, AttributeError):
        return False


def _about(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text("utf-8"))


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError as error:
        raise Refusal(f"{name} is no JSON ({error}).") from error
    if not isinstance(told, dict) or not ABOUT <= told.keys():
        raise Refusal(f"{name} must be an object with {', '.join(sorted(ABOUT))}.")
    return told


def _plain(value: Any) -> Any:
    """The same with None for what is not finite: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
