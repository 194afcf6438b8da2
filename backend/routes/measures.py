"""The catalogue of measures."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from backend.measures import catalogue

router = APIRouter(tags=["measures"])


@router.get("/measures")
def every() -> dict[str, Any]:
    """Every measure with its question, axes, sides and knobs."""
    return {"measures": catalogue()}
