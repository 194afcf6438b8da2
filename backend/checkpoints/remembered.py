"""What folders were found to be, kept between processes: a listing need not import transformers to say it again."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path

from backend.checkpoints.digests import stamp_of
from backend.checkpoints.identity import Checkpoint

_HERE = Path(__file__).parent
_LAB = _HERE.parents[1] / "analysis" / "lab" / "config.py"


class Remembered:
    """One `Checkpoint` a folder, given back while its files look the same to the same code; kept in a JSON file."""

    def __init__(self, file: Path | None = None):
        self._file = file
        self._known: dict[str, tuple[str, Checkpoint]] = {}
        self._at: dict[str, Path] = {}  # where a checkpoint's real folder was found: its path may have links
        self._new = False
        self._saving = threading.Lock()  # questions are looked up on many threads
        if file and file.is_file():
            try:
                kept = json.loads(file.read_text("utf-8"))
                self._known = {path: (stamp, Checkpoint.from_kept(values)) for path, (stamp, values) in kept.items()}
            except (ValueError, TypeError, AttributeError):
                self._known = {}  # a damaged memory costs reading again, no more

    def read(self, folder: Path, roots: Sequence[Path] | None, read: Callable[[], Checkpoint]) -> Checkpoint:
        """What it was when its files looked as they do now, or else what `read` finds."""
        stamp = look(folder, roots)
        seen, found = self._known.get(str(folder), ("", None))
        if found is None or seen != stamp:
            found = read()
            self._known[str(folder)] = (stamp, found)
            self._new = True
        self._at[found.folder] = folder
        return found

    def still(self, checkpoint: Checkpoint, roots: Sequence[Path] | None) -> bool:
        """Whether its folder looks as it did when it was read: asks for a look at this one folder, not at all."""
        folder = self._at.get(checkpoint.folder)
        return folder is not None and self._known.get(str(folder), ("",))[0] == look(folder, roots)

    def forget(self, checkpoint: Checkpoint) -> None:
        """Read it again at the next look: its fingerprint is known now."""
        self._known.pop(str(self._at.pop(checkpoint.folder, "")), None)

    def save(self) -> None:
        """Write what is new; what is broken or not hashed yet is read again by every process."""
        with self._saving:
            if not (self._file and self._new):
                return
            self._new = False
            known = list(self._known.items())
            whole = {path: (stamp, asdict(c)) for path, (stamp, c) in known if c.fingerprint and not c.error}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f".{self._file.name}")
            draft.write_text(json.dumps(whole), "utf-8")
            draft.replace(self._file)


def look(folder: Path, roots: Sequence[Path] | None) -> str:
    """All that decides what a folder is read as: its files and its run's, as seen from outside, the roots, the code."""
    files = [*_files(folder), *_files(folder.parent)]
    return hashlib.sha256("\n".join([*files, *map(str, roots or ()), _code()]).encode()).hexdigest()


def _files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(f"{e.name} {stamp_of(e.stat())}" for e in entries if e.is_file())
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
