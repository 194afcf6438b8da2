"""Who serves a store: an address in a file beside it, so the command line asks instead of fighting for the lock."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "backend.json"


@dataclass(frozen=True)
class Serving:
    """The backend that holds a store."""

    url: str
    pid: int


def announce(folder: Path, url: str) -> None:
    """Say that this process serves the store at this address."""
    draft = folder / f".{FILE}.{os.getpid()}"
    draft.write_text(json.dumps(asdict(Serving(url, os.getpid()))))
    draft.replace(folder / FILE)


def withdraw(folder: Path) -> None:
    """Take the address back, if it is this process's."""
    found = _read(folder)
    if found and found.pid == os.getpid():
        (folder / FILE).unlink(missing_ok=True)


def serving(folder: Path) -> Serving | None:
    """The backend that serves the store, or None: no file, or its process is gone (a kill leaves the file behind)."""
    found = _read(folder)
    if found is None:
        return None
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it lives, under another user
    return found


def _read(folder: Path) -> Serving | None:
    try:
        about = json.loads((folder / FILE).read_text())
        return Serving(str(about["url"]), int(about["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
