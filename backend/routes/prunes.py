"""The prune planner: what each criterion would drop, and what that costs; at once and kept nowhere."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from backend.edits.asking import MOST_RANDOM, pruned
from backend.routes.services import Running, means

router = APIRouter(prefix="/prunes", tags=["prunes"])


class PruneBody(BaseModel):
    """A share of each layer's experts to drop."""

    model_config = ConfigDict(extra="forbid")
    checkpoint: str
    prompts: str
    ratio: float
    randoms: int = Field(default=3, ge=0, le=MOST_RANDOM)


@router.post("")
def put(services: Running, body: PruneBody) -> dict[str, Any]:
    """Keep-lists by criterion, their agreement, the ceiling of split halves, perplexity against random keep-lists."""
    prompts = services.prompts.find(body.prompts)
    return pruned(body.checkpoint, body.ratio, body.randoms, prompts, means(services), lambda progress: None)
