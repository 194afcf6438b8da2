"""The store through the backend that holds it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from backend.checkpoints.variants import split
from backend.cli.door import Progress, Wanted
from backend.errors import NotFound, Refusal, Unavailable
from backend.runners.failures import TaskCancelled, TaskFailed
from backend.store import Serving

START_SECONDS = 30.0
"""A backend that has just announced itself may need this long to listen."""
WAIT_SECONDS = 1.0


class RemoteDoor:
    """Implements `Door` over HTTP."""

    def __init__(self, served: Serving):
        self._served = served
        # Loopback needs no proxy, whatever the environment says of the world outside.
        self._http = httpx.Client(base_url=f"{served.url}/api/v1", timeout=60, trust_env=False)

    def __enter__(self) -> RemoteDoor:
        self._wait_until_up()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, wanted: Wanted, progress: Progress) -> dict[str, Any]:
        """Ask, follow the job if there is one, fetch the answer."""
        reply = self._send("POST", "/questions", json=self._body(wanted) | {"wait": WAIT_SECONDS})
        if reply.status_code == httpx.codes.OK:
            return reply.json()
        job = reply.json()
        self._follow(job["job"], progress)
        return self._send("GET", f"/questions/{job['key']}").json()

    def plan(self, wanted: Wanted) -> dict[str, Any]:
        """Plan it there."""
        return self._send("POST", "/questions/plan", json=self._body(wanted)).json()

    def edit(
        self, checkpoint: str, prompts: str, spec: Mapping[str, Any], options: Mapping[str, Any], progress: Progress
    ) -> dict[str, Any]:
        """Ask the backend; it says nothing until it is done, however long that takes."""
        named = {"checkpoint": self._checkpoint(checkpoint), "prompts": self._prompt_set(prompts)}
        if "checkpoint" in spec:
            spec = {**spec, "checkpoint": self._checkpoint(spec["checkpoint"])}
        return self._send("POST", "/edits", json=named | {"edit": dict(spec)} | dict(options), timeout=None).json()

    def prune(self, checkpoint: str, prompts: str, ratio: float, randoms: int, progress: Progress) -> dict[str, Any]:
        """Ask the backend; it says nothing until it is done."""
        named = {"checkpoint": self._checkpoint(checkpoint), "prompts": self._prompt_set(prompts)}
        return self._send("POST", "/prunes", json=named | {"ratio": ratio, "randoms": randoms}, timeout=None).json()

    def checkpoints(self) -> list[dict[str, Any]]:
        """All checkpoints."""
        return self._send("GET", "/checkpoints").json()["checkpoints"]

    def inspect(self, source: str) -> dict[str, Any]:
        """Headers only."""
        return self._send("GET", "/checkpoints/inspect", params={"source": _absolute(source)}).json()

    def register(self, source: str) -> dict[str, Any]:
        """Keep it."""
        return self._send("POST", "/checkpoints", json={"source": _absolute(source)}).json()

    def import_trace(self, path: str, name: str, said: Mapping[str, Any], prompts: str | None) -> dict[str, Any]:
        """Upload the file; a folder is none."""
        file = Path(path)
        if file.is_dir():
            raise Refusal(
                f"{path} is a folder, and the backend at {self._served.url} takes one file; stop it to import a folder "
                "from here."
            )
        data = {"name": name, **({"prompts": prompts} if prompts else {})}
        data |= {key: str(value) for key, value in said.items() if value is not None}
        with file.open("rb") as opened:
            return self._send("POST", "/traces", files={"file": (file.name, opened)}, data=data).json()

    def register_run(self, sources: Sequence[str], name: str | None) -> dict[str, Any]:
        """Keep its steps."""
        body = {"sources": [_absolute(source) for source in sources], "name": name}
        return self._send("POST", "/checkpoints/runs", json=body).json()

    def prompts(self) -> list[dict[str, Any]]:
        """All sets."""
        return self._send("GET", "/prompts").json()["prompts"]

    def prompt_set(self, name: str) -> dict[str, Any]:
        """One set with all its rows."""
        found = self._send("GET", f"/prompts/{name}").json()
        while len(found["rows"]) < found["prompts"]:
            more = self._send("GET", f"/prompts/{name}", params={"offset": len(found["rows"]), "limit": 500}).json()
            if not more["rows"]:
                break
            found["rows"] += more["rows"]
        return found

    def add_prompts(self, path: str) -> dict[str, Any]:
        """Upload a file."""
        return self._upload(Path(path), None)

    def delete_prompts(self, name: str) -> None:
        """Forget a set."""
        self._send("DELETE", f"/prompts/{name}")

    def sql(self, query: str) -> dict[str, Any]:
        """One SELECT."""
        return self._send("POST", "/sql", json={"query": query}).json()

    def _body(self, wanted: Wanted) -> dict[str, Any]:
        return {
            "measure": wanted.measure,
            "checkpoints": [self._checkpoint(name) for name in wanted.checkpoints],
            "prompts": self._prompt_set(wanted.prompts) if wanted.prompts else None,
            "knobs": dict(wanted.knobs),
            "capture": dict(wanted.capture),
        }

    def _checkpoint(self, name: str) -> str:
        own, said = split(name)
        if not Path(own).is_dir():
            return name
        return self.register(own)["id"] + (f"@{said}" if said else "")

    def _prompt_set(self, name: str) -> str:
        """The set's name; a file is uploaded under a name that holds its digest, once."""
        if not Path(name).is_file():
            return name
        from backend.prompts import read_file

        found = read_file(Path(name))
        same = next((s["name"] for s in self.prompts() if s["digest"] == found.digest), None)
        if same:
            return same
        mark = hashlib.sha256(Path(name).read_bytes()).hexdigest()[:8]
        return self._upload(Path(name), f"{found.name}-{mark}")["name"]

    def _upload(self, path: Path, name: str | None) -> dict[str, Any]:
        with path.open("rb") as file:
            data = {"name": name} if name else {}
            return self._send("POST", "/prompts", files={"file": (path.name, file)}, data=data).json()

    def _follow(self, job: str, progress: Progress) -> None:
        with self._http.stream("GET", f"/jobs/{job}/events", timeout=None) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data:"):
                    continue
                now = json.loads(line.removeprefix("data:"))
                progress(now["stage"], now["fraction"], now["eta_seconds"])
                if now["state"] == "failed":
                    raise TaskFailed(now["message"])
                if now["state"] == "cancelled":
                    raise TaskCancelled("The job was cancelled.")
                if now["state"] == "done":
                    return
        raise Unavailable("The backend closed the stream before the job was done; ask again.")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            reply = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unavailable(f"The backend at {self._served.url} does not answer ({type(error).__name__}).") from error
        if reply.is_error:
            raise _refusal(reply)
        return reply

    def _wait_until_up(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self._http.get("/health")
                return
            except httpx.TransportError as error:
                if time.monotonic() > end:
                    raise Unavailable(
                        f"Process {self._served.pid} holds the store but does not answer at {self._served.url}."
                    ) from error
                time.sleep(0.2)


def _refusal(reply: httpx.Response) -> Refusal:
    try:
        problem = reply.json()
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"The backend answered {reply.status_code} without saying why.")
    kind = NotFound if reply.status_code == httpx.codes.NOT_FOUND else Refusal
    return kind(detail, known=problem.get("known"))


def _absolute(source: str) -> str:
    """A folder by its whole path: the backend may run in another one."""
    return str(Path(source).resolve()) if Path(source).exists() else source
