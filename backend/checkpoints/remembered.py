"""What folders were found to be, kept between processes: a listing need not import transformers to say it again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path

from backend.checkpoints.digests import file_stamp
from backend.checkpoints.identity import Checkpoint

_HERE = Path(__file__).parent
_LAB = _HERE.parents[1] / "analysis" / "lab" / "model.py"


class Remembered:
    """One `Checkpoint` a folder, given back while its files look the same to the same code; kept in a JSON file."""

    def __init__(self, file: Path | None = None):
        self._file = file
        self._known: dict[str, tuple[str, Checkpoint]] = {}
        self._new = False
        if file and file.is_file():
            try:
                kept = json.loads(file.read_text("utf-8"))
                self._known = {path: (stamp, _checkpoint(values)) for path, (stamp, values) in kept.items()}
            except (ValueError, TypeError, AttributeError):
                self._known = {}  # a damaged memory costs reading again, no more

    def get(self, folder: Path, stamp: str) -> Checkpoint | None:
        """What it was when its files looked so."""
        seen, checkpoint = self._known.get(str(folder), ("", None))
        return checkpoint if seen == stamp else None

    def put(self, folder: Path, stamp: str, checkpoint: Checkpoint) -> None:
        """Remember it; what is broken or not hashed yet is read again by every process."""
        self._known[str(folder)] = (stamp, checkpoint)
        self._new = True

    def save(self) -> None:
        """Write what is new."""
        if not (self._file and self._new):
            return
        self._new = False
        whole = {path: (stamp, asdict(c)) for path, (stamp, c) in self._known.items() if c.fingerprint and not c.error}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_name(f".{self._file.name}")
        draft.write_text(json.dumps(whole), "utf-8")
        draft.replace(self._file)


def look(folder: Path, roots: Sequence[Path]) -> str:
    """All that decides what a folder is read as: its files and its run's, as seen from outside, the roots, the code."""
    files = [*_files(folder), *_files(folder.parent)]
    return hashlib.sha256("\n".join([*files, *map(str, roots), _code()]).encode()).hexdigest()


def _files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(f"{e.name} {file_stamp(Path(e.path))}" for e in entries if e.is_file())
    except OSError:
        return []


def _code() -> str:
    own = os.environ.get("MOE_GEOMETRY_ADAPTERS", "").strip()
    return "\n".join([_reader(), own, *(_files(Path(own).expanduser()) if own else [])])


@cache
def _reader() -> str:
    """The code that reads: this folder, the lab's config, and the transformers that types every other."""
    files = [*sorted(_HERE.glob("*.py")), *sorted(_HERE.glob("*.json")), _LAB]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()
    return f"{digest} transformers {version('transformers')}"


def _checkpoint(values: dict) -> Checkpoint:
    return Checkpoint(**{**values, "statistics": tuple(values["statistics"])})
