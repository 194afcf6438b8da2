"""A small backend that speaks the API: planted answers, jobs that take a moment, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from tests.frontend import planted

API = "/api/v1"


def problem(status: int, title: str, detail: str, **more: Any) -> JSONResponse:
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail} | more
    return JSONResponse(body, status, media_type="application/problem+json")


@dataclass
class Desk:
    """What the fake remembers."""

    everything_stored: bool = False
    step_seconds: float = 0.3
    stored: set[str] = field(default_factory=set)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: list[asyncio.Task] = field(default_factory=list)
    streams_closed: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[dict[str, Any]] = field(default_factory=list)
    fails: str = ""

    def answer(self, question: dict[str, Any]) -> Any:
        self.asked.append(question)
        name, checkpoints = question["measure"], question["checkpoints"]
        known = [m["name"] for m in planted.MEASURES]
        if name not in known:
            return problem(422, "unknown measure", f"No measure {name}.", known=known)
        if any(c.startswith("dense") for c in checkpoints):
            return problem(422, "no experts", f"{checkpoints[0]} is dense: it has no experts to ask about.")
        if self.everything_stored or planted.key_of(question) in self.stored:
            return planted.answer(question)
        if question.get("only_stored"):
            cost = {"passes": 1, "tokens": 4096, "seconds": 3.0, "memory_bytes": 2e6}
            return problem(404, "not asked yet", "The store does not hold this answer.", cost=cost)
        return self.start(question)

    def start(self, question: dict[str, Any]) -> JSONResponse:
        job = {
            "id": f"j{len(self.jobs)}",
            "key": planted.key_of(question),
            "state": "waiting",
            "stage": "",
            "fraction": 0.0,
            "eta_seconds": None,
            "message": None,
            "created": "2026-11-29T14:00:00",
            "started": None,
            "finished": None,
        } | {name: question[name] for name in ("measure", "checkpoints", "prompts")}
        self.jobs[job["id"]] = job
        self.tasks.append(asyncio.create_task(self.work(job)))
        told = {"job": job["id"], "key": job["key"], "events": f"{API}/jobs/{job['id']}/events"}
        return JSONResponse(told, 202)

    async def work(self, job: dict[str, Any]) -> None:
        for layer in range(planted.LAYERS):
            stage = f"layer {layer + 1} of {planted.LAYERS}"
            job |= {"state": "running", "stage": stage, "fraction": (layer + 1) / planted.LAYERS, "eta_seconds": 2.0}
            await asyncio.sleep(self.step_seconds)
            if job["state"] == "cancelled":
                return
        if job["measure"] == self.fails:
            job |= {"state": "failed", "message": "The worker was killed while it measured this. Ask again."}
            return
        self.stored.add(job["key"])
        job |= {"state": "done", "finished": "2026-11-29T14:01:00"}

    async def events(self, name: str) -> AsyncIterator[str]:
        try:
            while True:
                job = self.jobs.get(name) or {"id": name, "state": "running", "fraction": 0.5, "stage": "layer 1 of 2"}
                kind = "progress" if job["state"] in ("waiting", "running") else job["state"]
                yield f"id: 1\nevent: {kind}\ndata: {json.dumps(job)}\n\n"
                if kind != "progress":
                    return
                await asyncio.sleep(0.2)
        finally:
            self.streams_closed.set()


def create_fake(everything_stored: bool = False) -> FastAPI:
    """With `everything_stored` no question needs a job; otherwise each is asked first."""
    app, desk = FastAPI(), Desk(everything_stored)
    app.state.desk = desk
    _material(app)
    _prompts(app)
    _questions(app, desk)

    @app.api_route("/api/{path:path}", methods=["GET", "POST", "DELETE"])
    async def unknown(path: str) -> JSONResponse:
        return problem(404, "not found", f"No route /api/{path}.")

    return app


def _material(app: FastAPI) -> None:
    @app.get(f"{API}/health")
    async def health() -> dict[str, Any]:
        told = {"status": "ok", "device": "cpu", "store": "/tmp/store", "schema": 1, "worker": "idle"}
        return told | {"version": "0.1.0"}

    @app.get(f"{API}/checkpoints")
    async def checkpoints() -> dict[str, Any]:
        return {"checkpoints": planted.CHECKPOINTS}

    @app.post(f"{API}/checkpoints")
    async def register(body: dict[str, Any]) -> Any:
        return problem(422, "not a checkpoint", f"{body['source']} has no config.json.")

    @app.get(f"{API}/traces/formats")
    async def formats() -> dict[str, Any]:
        return {"formats": [{"name": "counts", "title": "matrices <i>of</i> counts"}]}

    @app.get(f"{API}/measures")
    async def measures() -> dict[str, Any]:
        return {"measures": planted.MEASURES}


def _prompts(app: FastAPI) -> None:
    @app.get(f"{API}/prompts")
    async def prompts() -> dict[str, Any]:
        return {"prompts": planted.SETS}

    @app.get(f"{API}/prompts/{{name}}")
    async def rows(name: str) -> dict[str, Any]:
        return planted.SETS[0] | {"rows": planted.rows()}

    @app.post(f"{API}/prompts/preview")
    async def preview(request: Request) -> Any:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
        return planted.REPORT | {"received": size}


def _questions(app: FastAPI, desk: Desk) -> None:
    @app.post(f"{API}/questions")
    async def ask(question: dict[str, Any]) -> Any:
        return desk.answer(question)

    @app.get(f"{API}/questions/{{key}}")
    async def by_key(key: str) -> Any:
        name = key.split("-")[0]
        ends = ["aux/step-02000", "free/step-02000"]
        return planted.answer({"measure": name, "checkpoints": ends, "knobs": {}, "prompts": "four-tasks"})

    @app.get(f"{API}/experiments")
    def experiments():
        row = {"quantity": "d", "published": 1.44, "ours": 2.0, "low": 1.0, "high": 3.0, "verdict": "shows", "note": ""}
        told = {"title": "An effect", "source": "A paper", "made": "2026-11-30", "command": "lab reproduce effect"}
        return {"experiments": [{"name": "effect", "rows": [row]} | told]}

    @app.get(f"{API}/live")
    def live_runs():
        return {"runs": []}

    @app.get(f"{API}/jobs")
    async def listed() -> dict[str, Any]:
        return {"jobs": list(desk.jobs.values())[::-1]}

    @app.delete(f"{API}/jobs/{{name}}")
    async def cancel(name: str) -> dict[str, Any]:
        desk.jobs[name]["state"] = "cancelled"
        return desk.jobs[name]

    @app.get(f"{API}/jobs/{{name}}/events")
    async def events(name: str) -> StreamingResponse:
        return StreamingResponse(desk.events(name), media_type="text/event-stream")
