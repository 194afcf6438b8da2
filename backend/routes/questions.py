"""Questions: an answer at once where the store has it, else a job."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from backend import wire
from backend.answer import Answer
from backend.capture import CaptureOptions
from backend.errors import NotFound, Unavailable
from backend.jobs import Job
from backend.question import Question, ask
from backend.routes.services import Running
from backend.runners.failures import TaskFailed
from backend.services import Services

router = APIRouter(prefix="/questions", tags=["questions"])

MOST_WAIT = 20.0
MOST_CHECKPOINTS = 64
"""Steps of a run in one question."""


class CaptureBody(BaseModel):
    """How prompts are run, and whether the first token of each counts."""

    model_config = ConfigDict(extra="forbid")
    generate: int = Field(default=0, ge=0, le=4096)
    chat_template: bool = False
    first_token: bool = True


class QuestionBody(BaseModel):
    """A question in names. `wait` seconds are spent before a job is answered with; `only_stored` starts none."""

    model_config = ConfigDict(extra="forbid")
    measure: str
    checkpoints: list[str] = Field(min_length=1, max_length=MOST_CHECKPOINTS)
    prompts: str | None = None
    knobs: dict[str, bool | int | float | str] = {}
    capture: CaptureBody = CaptureBody()
    wait: float = Field(default=0.0, ge=0, le=MOST_WAIT)
    only_stored: bool = False


@router.post("")
async def put(services: Running, request: Request, body: QuestionBody) -> Response:
    """The answer, or 202 and the job that will have it."""
    question = await asyncio.to_thread(_question, services, body)
    found = await asyncio.to_thread(services.answering.stored, question)
    if found:
        return answered(request, found)
    if body.only_stored:
        return await asyncio.to_thread(_cost, services, question)
    # A question the machine cannot pay for is refused here, before it becomes a job.
    await asyncio.to_thread(services.answering.plan, question)
    job = await asyncio.to_thread(services.jobs.ask, question)
    job = await _ended(services, job.id, body.wait)
    if job and job.state == "done":
        found = await asyncio.to_thread(services.answering.stored, question)
        if found:
            return answered(request, found)
    if job and job.state == "failed":
        raise TaskFailed(job.message or "", job.refused)
    return _accepted(job, question)


@router.post("/plan")
def plan(services: Running, body: QuestionBody) -> dict[str, Any]:
    """What asking this would take: device, dtype, how the model is held, passes, memory, time; nothing is begun."""
    question = _question(services, body)
    answered = services.answering.stored(question) is not None
    return {"key": question.key, "answered": answered} | services.answering.told(question)


@router.get("")
def every(services: Running) -> dict[str, Any]:
    """What has been answered, newest first."""
    return {"questions": services.store.answers()}


@router.get("/{key}")
def one(
    services: Running,
    request: Request,
    key: str,
    form: Annotated[str | None, Query(alias="format")] = None,
) -> Response:
    """A stored answer; `format` is csv, parquet, npy or tex for a file to keep."""
    told = services.store.get_answer(key)
    if told is None:
        raise NotFound(f"No question with the key {key!r} has been answered.")
    if form is None:
        return answered(request, Answer(told.result, told.provenance))
    data = wire.to_file(told.result, told.provenance, form)
    name = f"{told.result.measure}-{key[:8]}.{form}"
    return Response(
        data, media_type=wire.FORMATS[form], headers={"content-disposition": f'attachment; filename="{name}"'}
    )


@router.get("/{key}/arrays/{name}")
def array(services: Running, key: str, name: str) -> Response:
    """What a stored answer was made from (a Gram, subspaces), as .npy; the view `arrays` lists them."""
    found = services.store.answer_array(key, name)
    if found is None:
        raise NotFound(f"The answer {key!r} has no array {name!r}; `SELECT key, name FROM arrays` lists those kept.")
    file = io.BytesIO()
    np.save(file, found, allow_pickle=False)
    disposition = {"content-disposition": f'attachment; filename="{name}-{key[:8]}.npy"'}
    return Response(file.getvalue(), media_type=wire.FORMATS["npy"], headers=disposition)


def answered(request: Request, answer: Answer) -> Response:
    """As Arrow if the client accepts it, else as JSON."""
    if wire.ARROW_STREAM in request.headers.get("accept", ""):
        return Response(wire.to_arrow(answer.result, answer.provenance), media_type=wire.ARROW_STREAM)
    text = json.dumps(wire.to_json(answer.result, answer.provenance), allow_nan=False)
    return Response(text, media_type="application/json")


def _question(services: Services, body: QuestionBody) -> Question:
    return ask(
        body.measure,
        [services.checkpoints.find(name) for name in body.checkpoints],
        services.prompts.find(body.prompts) if body.prompts else None,
        body.knobs,
        CaptureOptions(**body.capture.model_dump()),
        services.checkpoints.start_of,
    )


def _cost(services: Services, question: Question) -> Response:
    cost = services.answering.told(question)
    problem = {"type": "about:blank", "title": "Not asked yet", "status": 404, "key": question.key, "cost": cost}
    problem["detail"] = f"{question.measure.title} has not been asked of this yet."
    return JSONResponse(problem, 404, media_type="application/problem+json")


async def _ended(services: Services, job: str, seconds: float) -> Job:
    """The job once it has ended, or as it stands after these seconds."""

    async def end() -> Job:
        async for now in services.jobs.follow(job, pace=0):
            if now.ended:
                return now
        raise Unavailable("The job is gone.")

    try:
        return await asyncio.wait_for(end(), seconds)
    except TimeoutError:
        return await asyncio.to_thread(services.jobs.get, job)


def _accepted(job: Job, question: Question) -> Response:
    where = f"/api/v1/jobs/{job.id}"
    body = {"job": job.id, "key": question.key, "events": f"{where}/events"}
    return JSONResponse(body, 202, headers={"location": where})
