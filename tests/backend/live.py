"""A real backend on a real port, in this process, so that a test can ask over HTTP and look behind the door."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn

from backend.app import create_app
from backend.prompts import PromptSet
from backend.runners.local import LocalRunner
from backend.runners.messages import CaptureTask, Loaded
from backend.services import Services
from backend.settings import Settings

PATIENCE = 300.0


@dataclass(frozen=True)
class Live:
    """The running backend: a client, its parts, its settings."""

    http: httpx.Client
    services: Services
    settings: Settings

    @property
    def runner(self) -> LocalRunner:
        assert isinstance(self.services.runner, LocalRunner)
        return self.services.runner

    def add(self, prompts: PromptSet) -> str:
        self.services.store.add_prompt_set(prompts)
        return prompts.name

    def ask(
        self, measure: str, prompts: str | None, checkpoints: tuple[str, ...] = ("tiny",), **more: Any
    ) -> httpx.Response:
        body = {"measure": measure, "checkpoints": list(checkpoints), "prompts": prompts} | more
        return self.http.post("/questions", json=body)

    def answer(self, measure: str, prompts: str | None, checkpoints: tuple[str, ...] = ("tiny",), **more: Any) -> dict:
        reply = self.ask(measure, prompts, checkpoints, **more)
        if reply.status_code == 202:
            job = self.ended(reply.json()["job"])
            assert job["state"] == "done", job["message"]
            reply = self.http.get(f"/questions/{reply.json()['key']}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def job(self, job: str) -> dict[str, Any]:
        return self.http.get(f"/jobs/{job}").json()

    def ended(self, job: str) -> dict[str, Any]:
        return self.until(job, lambda now: now["state"] in ("done", "failed", "cancelled"))

    def until(self, job: str, happens: Any) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            now = self.job(job)
            if happens(now):
                return now
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE:.0f} s: {now}")

    def passes(self, since: int = 0) -> list[CaptureTask]:
        return [item for item in list(self.runner.log)[since:] if isinstance(item, CaptureTask)]

    def loads(self, since: int = 0) -> list[Loaded]:
        return [item for item in list(self.runner.log)[since:] if isinstance(item, Loaded)]

    def events(self, job: str, headers: dict[str, str] | None = None) -> list[tuple[int, str, dict[str, Any]]]:
        with self.http.stream("GET", f"/jobs/{job}/events", headers=headers, timeout=PATIENCE) as stream:
            assert stream.headers["x-accel-buffering"] == "no"
            blocks = "\n".join(stream.iter_lines()).split("\n\n")
        # A line that begins with a colon is a heartbeat, which only a slow job needs.
        told = [[line for line in block.split("\n") if line and not line.startswith(":")] for block in blocks]
        pairs = [dict(line.split(": ", 1) for line in lines) for lines in told if lines]
        return [(int(pair["id"]), pair["event"], json.loads(pair["data"])) for pair in pairs]


@contextmanager
def serving(settings: Settings) -> Iterator[Live]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = replace(settings, port=port)
    app = create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the backend did not start"
            time.sleep(0.05)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=120, trust_env=False) as http:
            yield Live(http, app.state.services, settings)
    finally:
        server.should_exit = True
        thread.join(30)
