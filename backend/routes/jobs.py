"""Jobs: what is under way, its events as a stream, and a way to stop it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from backend.jobs import Job, Jobs
from backend.routes.services import Running

router = APIRouter(prefix="/jobs", tags=["jobs"])

HEARTBEAT_SECONDS = 15.0
_EVENTS = {"waiting": "progress", "running": "progress"}


@router.get("")
def every(services: Running) -> dict[str, Any]:
    """Newest first."""
    return {"jobs": [job.to_json() for job in services.jobs.list()]}


@router.get("/{job}")
def one(services: Running, job: str) -> dict[str, Any]:
    """One job as it stands."""
    return services.jobs.get(job).to_json()


@router.delete("/{job}")
def cancel(services: Running, job: str) -> dict[str, Any]:
    """Stop it between two batches; what it has stored stays."""
    return services.jobs.cancel(job).to_json()


@router.get("/{job}/events")
async def events(
    services: Running, job: str, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Server-sent events until the job ends; a client that comes back names the last id it saw."""
    await asyncio.to_thread(services.jobs.get, job)
    seen = int(last_event_id) if last_event_id and last_event_id.isdecimal() else 0
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_stream(services.jobs, job, seen), media_type="text/event-stream", headers=headers)


async def _stream(jobs: Jobs, job: str, seen: int) -> AsyncIterator[str]:
    changes = jobs.follow(job, seen)
    waiting: asyncio.Future[Job] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(changes))
            done, _ = await asyncio.wait({waiting}, timeout=HEARTBEAT_SECONDS)
            if not done:
                yield ": still here\n\n"
                continue
            try:
                now = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield _event(now)
    finally:
        if waiting:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting
        await changes.aclose()


def _event(job: Job) -> str:
    name = _EVENTS.get(job.state, job.state)
    return f"id: {job.version}\nevent: {name}\ndata: {json.dumps(job.to_json(), ensure_ascii=False)}\n\n"
