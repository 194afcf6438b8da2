"""What if: an edit of a model against the untouched one, at once and kept nowhere."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from backend.edits.asking import MOST_RANDOM, Asked, tried
from backend.routes.services import Running, means

router = APIRouter(prefix="/edits", tags=["edits"])


class EditBody(BaseModel):
    """An edit, `{"kind": "off", "layer": "2", "expert": 5}`, of one checkpoint on one prompt set."""

    model_config = ConfigDict(extra="forbid")
    checkpoint: str
    prompts: str
    edit: dict[str, Any]
    randoms: int = Field(default=5, ge=0, le=MOST_RANDOM)
    chat_template: bool = False


@router.post("")
def put(services: Running, body: EditBody) -> dict[str, Any]:
    """Perplexity by category, routing and changed tokens beside the untouched model and random edits of that kind."""
    asked = Asked(body.checkpoint, body.edit, body.randoms, body.chat_template)
    return tried(asked, services.prompts.find(body.prompts), means(services), lambda progress: None)
