"""The hub's HTTP interface, as far as its client asks it for a model: a real server on a real port, for tests alone.

Large files are redirected to another host name, as the hub does: a token must not arrive there.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants

NAME = "someone/tiny"
TOKEN = "hf_secretsecretsecret"


@dataclass
class Seen:
    """A request that came."""

    method: str
    path: str
    range: str | None
    token: str | None


@dataclass
class FakeHub:
    """Commits of repositories and what the server is to do wrong; `seen` is what was asked of it."""

    url: str = ""
    elsewhere: str = ""
    commits: dict[str, Path] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    owners: dict[str, set[str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    breaks: int = 0  # how many answers from now on end after half of a large file
    other: bytes | None = None  # what comes instead of a large file
    plain: bool = False  # no file is kept as a large one
    seen: list[Seen] = field(default_factory=list)

    def add(self, folder: Path, name: str = NAME, branch: str = "main") -> str:
        """A commit, called by the content of its folder; returns its hash."""
        mark = hashlib.sha1()
        for path in sorted(folder.iterdir()):
            mark.update(path.name.encode() + path.read_bytes())
        commit = mark.hexdigest()
        self.commits[commit], self.branches[name, branch] = folder, commit
        self.owners.setdefault(name, set()).add(commit)
        return commit

    def commit(self, name: str, revision: str) -> str | None:
        return revision if revision in self.owners[name] else self.branches.get((name, revision))

    def fetched(self, ending: str = ".safetensors") -> list[Seen]:
        """Whole files that travelled: not their headers."""
        return [s for s in self.seen if s.method == "GET" and s.path.endswith(ending) and s.range != "bytes=0-100000"]

    def install(self, patch: pytest.MonkeyPatch, cache: Path) -> None:
        """Point the hub's client of this process here, with a cache of its own."""
        huggingface_hub.close_session()
        patch.setattr(constants, "ENDPOINT", self.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", self.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)


@contextmanager
def running() -> Iterator[FakeHub]:
    """A hub until the end of the block."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    hub.elsewhere = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        huggingface_hub.close_session()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("authorization")
        self.hub.seen.append(Seen(self.command, path, self.headers.get("range"), token))
        if path.startswith("/large/"):
            self._send_large(Path(path.removeprefix("/large")))
            return
        api = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models").strip("/").split("/", 3)
        name = "/".join(parts[:2])
        revision = parts[3] if api and len(parts) > 3 else parts[3].split("/")[0] if len(parts) > 3 else "main"
        if name not in self.hub.owners:
            self._fail(401, "RepoNotFound")
        elif name in self.hub.gated and token != f"Bearer {TOKEN}":
            self._fail(401, "GatedRepo", f"you sent {token}")
        elif (commit := self.hub.commit(name, revision)) is None:
            self._fail(404, "RevisionNotFound")
        elif api:
            self._list(commit)
        else:
            self._resolve(commit, parts[3].split("/", 1)[1])

    def _list(self, commit: str) -> None:
        files = []
        for path in sorted(self.hub.commits[commit].iterdir()):
            data = path.read_bytes()
            about = {"rfilename": path.name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if self._large(path):
                about["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            files.append(about)
        self._send(200, json.dumps({"id": NAME, "sha": commit, "siblings": files}).encode())

    def _resolve(self, commit: str, file: str) -> None:
        path = self.hub.commits[commit] / file
        if not path.is_file():
            self._fail(404, "EntryNotFound", headers={"X-Repo-Commit": commit})
            return
        data = path.read_bytes()
        if not self._large(path):
            self._send(200, data, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
            return
        about = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
        about["X-Linked-Etag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        self._send(302, b"", about | {"Location": f"{self.hub.elsewhere}/large{path}"})

    def _large(self, path: Path) -> bool:
        return path.suffix in (".safetensors", ".bin") and not self.hub.plain

    def _send_large(self, path: Path) -> None:
        data = path.read_bytes() if self.hub.other is None else self.hub.other
        start, status, about = 0, 200, {"ETag": '"large"'}
        if asked := self.headers.get("range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, whole = int(first), len(data)
            data = data[start : int(last) + 1 if last else whole]
            status, about["Content-Range"] = 206, f"bytes {start}-{start + len(data) - 1}/{whole}"
        header_only = asked == "bytes=0-100000"
        if self.hub.breaks and not header_only:
            self.hub.breaks -= 1
            self._send(status, data, about, cut=len(data) // 2)
            self.close_connection = True
            return
        self._send(status, data, about)

    def _fail(self, status: int, code: str, message: str = "", headers: dict[str, str] | None = None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message or code, **(headers or {})})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[:cut])
