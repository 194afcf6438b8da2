"""Whether the backend is up, and on what."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from backend.routes.services import Running

router = APIRouter(tags=["health"])


@router.get("/health")
async def health(services: Running) -> dict[str, Any]:
    """Answers while jobs run: nothing here waits for the store or the worker."""
    return {
        "status": "ok",
        "device": services.runner.device,
        "store": str(services.settings.store),
        "schema": services.store.schema,
        "worker": services.runner.status,
        "version": version("moe-geometry"),
    }
