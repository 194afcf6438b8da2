"""Sends a run folder's records to a backend from its own thread: what fails stays in the folder and is tried again."""

from __future__ import annotations

import json
import logging
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote, urlparse

from analysis.errors import GeometryError
from backend.recorder.folder import SENT
from backend.recorder.record import NAME

log = logging.getLogger(__name__)

TIMEOUT = 10.0
PAUSE = 30.0
"""Seconds after which a backend that did not answer is tried again, record or no record."""
REFUSED = (413, 422)
"""What a backend says of a record that it will never take; anything else may be another server, or pass."""


class Poster:
    """One thread; `wake` tells it of a new record and returns at once."""

    def __init__(self, folder: Path, to: str):
        if urlparse(to).scheme not in ("http", "https"):
            raise GeometryError(f"{to!r} is no address of a backend; it looks like http://127.0.0.1:8000")
        self._folder = folder
        self._address = f"{to.rstrip('/')}/api/v1/live/{quote(folder.name)}"
        self._wake, self._closing = threading.Event(), threading.Event()
        self._told = False
        self._wake.set()
        self._thread = threading.Thread(target=self._serve, name="geometry-recorder", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Send what there is once more, and leave after so many seconds at most."""
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)

    def _serve(self) -> None:
        while True:
            self._wake.wait(PAUSE)
            self._wake.clear()
            closing = self._closing.is_set()
            self._send_all()
            if closing:
                return

    def _send_all(self) -> None:
        marks = self._folder / SENT
        try:
            sent = set(marks.read_text("utf-8").split()) if marks.exists() else set()
            files = [f for f in sorted(self._folder.iterdir()) if NAME.fullmatch(f.name) and f.name not in sent]
            for file in ([self._folder / "run.json"] if files else []) + files:
                self._put(file)
                if file in files:
                    with marks.open("a", encoding="utf-8") as out:
                        out.write(f"{file.name}\n")
            self._told = False
        except (OSError, HTTPException) as error:  # what answers may not be a backend, nor speak HTTP
            if not self._told:
                log.warning("records wait in %s: %s did not take them (%s)", self._folder, self._address, _said(error))
                self._told = True

    def _put(self, file: Path) -> None:
        """Send it; what a backend refuses for good keeps nobody waiting behind it, and lies in the folder still."""
        try:
            self._send(file)
        except urllib.error.HTTPError as error:
            if error.code not in REFUSED:
                raise
            log.warning("%s is not taken by %s: %s", file, self._address, _said(error))

    def _send(self, file: Path) -> None:
        request = urllib.request.Request(f"{self._address}/{file.name}", file.read_bytes(), method="PUT")
        request.add_header("content-type", "application/octet-stream")
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass


def _said(error: Exception) -> str:
    """Why, in the backend's own sentence where it gave one."""
    if isinstance(error, urllib.error.HTTPError):
        try:
            return str(json.loads(error.read())["detail"])
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            pass
    return str(error)
