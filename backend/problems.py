"""Everything that goes wrong, as application/problem+json (RFC 9457): from exception to status and sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from analysis.errors import GeometryError
from backend.errors import Refusal
from backend.runners.failures import TaskFailed

log = logging.getLogger(__name__)


def problem(
    status: int,
    detail: str,
    title: str | None = None,
    known: list[str] | None = None,
    asks: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The response; `known` lists what would have been accepted, `asks` names the option that settles what is open."""
    body = {"type": "about:blank", "title": title or HTTPStatus(status).phrase, "status": status, "detail": detail}
    if known is not None:
        body["known"] = known
    if asks is not None:
        body["asks"] = asks
    return JSONResponse(body, status, headers=dict(headers or {}), media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Make the app answer every exception so."""

    @app.exception_handler(Refusal)
    async def refusal(request: Request, error: Refusal) -> JSONResponse:
        return problem(error.status, str(error), error.title, error.known, error.asks)

    @app.exception_handler(GeometryError)
    async def geometry(request: Request, error: GeometryError) -> JSONResponse:
        return problem(422, str(error), "Refused")

    @app.exception_handler(TaskFailed)
    async def task(request: Request, error: TaskFailed) -> JSONResponse:
        return problem(422 if error.refusal else 503, str(error), "Refused" if error.refusal else "The work failed")

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem(422, _sentence(error), "Refused")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        detail = error.detail
        if detail == HTTPStatus(error.status_code).phrase:
            detail = f"{request.method} {request.url.path}: {detail.lower()}."
        return problem(error.status_code, detail, headers=error.headers)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        log.exception("%s %s", request.method, request.url.path, exc_info=error)
        return problem(
            500, f"The service met an error it does not know ({type(error).__name__}); its log has the trace."
        )


def _sentence(error: RequestValidationError) -> str:
    parts = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"] if part != "body") or "the body"
        message = item["msg"]
        parts.append(f"{where}: {message if message[:2].isupper() else message[:1].lower() + message[1:]}")
    return "The request does not read as it should: " + "; ".join(parts) + "."
