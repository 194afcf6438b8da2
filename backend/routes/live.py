"""Training runs as they go: recorders put records here, the page reads the health of a run."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from backend.routes.services import Running

router = APIRouter(prefix="/live", tags=["live"])


@router.get("")
def every(services: Running) -> dict[str, Any]:
    """All recorded runs, the one heard of last first."""
    return {"runs": services.live.list()}


@router.get("/{run}")
def one(services: Running, run: str) -> dict[str, Any]:
    """A run with a point for each recorded step."""
    return services.live.one(run)


@router.put("/{run}/{file}", status_code=204)
async def take(services: Running, request: Request, run: str, file: str) -> None:
    """A record, or run.json, as a recorder sends it; twice is once."""
    data = await request.body()
    await asyncio.to_thread(services.live.take, run, file, data)


@router.delete("/{run}", status_code=204)
def forget(services: Running, run: str) -> None:
    """Remove a posted run."""
    services.live.forget(run)
