"""Digests of files' content, remembered by path, size and times: a large file is hashed once, a changed one again."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path


class Digests:
    """SHA-256 per file; kept in a JSON file where one is given, so that a restart need not hash again."""

    def __init__(self, file: Path | None = None):
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}
        if file and file.is_file():
            try:
                self._known = {
                    path: (stamp, digest) for path, (stamp, digest) in json.loads(file.read_text("utf-8")).items()
                }
            except (ValueError, AttributeError):
                self._known = {}  # a damaged memory costs hashing again, no more

    def known(self, path: Path) -> str | None:
        """The digest if this very file was hashed before."""
        stamp, digest = self._known.get(str(path.resolve()), ("", ""))
        return digest if digest and stamp == file_stamp(path) else None

    def of(self, path: Path) -> str:
        """The digest of the content as it is now."""
        if found := self.known(path):
            return found
        stamp = file_stamp(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with self._lock:
            self._known[str(path.resolve())] = (stamp, digest)
            self._save()
        return digest

    def _save(self) -> None:
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f".{self._file.name}")
            draft.write_text(json.dumps(self._known), "utf-8")
            draft.replace(self._file)


def file_stamp(path: Path) -> str:
    """Size and times of a file; the change time too, since a copy sets the modification time back, but not that."""
    return stamp_of(path.stat())


def stamp_of(found: os.stat_result) -> str:
    """The same of what a look at a folder has said already."""
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}-{found.st_ino}"


def folder_stamp(paths: list[Path]) -> str:
    """One stamp over several files."""
    return hashlib.sha256("\n".join(f"{p.name} {file_stamp(p)}" for p in sorted(paths)).encode()).hexdigest()
