"""A text that somebody types: who serves each of its tokens, at once and kept nowhere."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from backend.capture import CaptureOptions
from backend.errors import Conflict, Refusal
from backend.routes.services import Running
from backend.runners.failures import TaskFailed
from backend.runners.messages import SentenceReady, SentenceTask
from backend.sizes import gigabytes

router = APIRouter(prefix="/sentences", tags=["sentences"])

MOST_CHARACTERS = 20_000
MOST_TOKENS = 1024
MOST_GENERATED = 64


class SentenceBody(BaseModel):
    """A text for one checkpoint; `generate` greedy tokens are written behind it."""

    model_config = ConfigDict(extra="forbid")
    checkpoint: str
    text: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    generate: int = Field(default=0, ge=0, le=MOST_GENERATED)
    chat_template: bool = False


@router.post("")
def put(services: Running, body: SentenceBody) -> JSONResponse:
    """Tokens with their experts, weights, entropy and margin by layer, and the likeliest next tokens."""
    checkpoint = services.checkpoints.find(body.checkpoint)
    if checkpoint.dense:
        raise Refusal(f"{checkpoint.id} is a dense model: it has no router, so no token is routed.")
    if checkpoint.trace:
        raise Refusal(f"{checkpoint.id} is an imported trace: there is no model that could read a text.")
    if not checkpoint.fetched:
        raise Conflict(
            f"The weights of {checkpoint.id} ({gigabytes(checkpoint.weight_bytes)}) are still on the hub, and a typed "
            "text, read at every key, does not fetch them. Ask one question of it first, load_violation for one: that "
            "fetches them, with progress and a way to cancel."
        )
    options = CaptureOptions(body.generate, body.chat_template, max_tokens=MOST_TOKENS)
    began, ready = time.perf_counter(), None
    for message in services.runner.run(SentenceTask(uuid.uuid4().hex, checkpoint, body.text, options)):
        ready = message if isinstance(message, SentenceReady) else ready
    if ready is None:
        raise TaskFailed(f"{checkpoint.id} ended without an answer.")
    told = {"checkpoint": checkpoint.id, "random_weights": checkpoint.random_weights, "device": services.runner.device}
    told |= {"seconds": round(time.perf_counter() - began, 4)} | ready.sentence.to_json()
    return JSONResponse(told)  # plain values already: to look for others among thousands of numbers takes a while
