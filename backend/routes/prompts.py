"""Prompt sets: list, read, preview, upload, forget. An upload is spooled to disk and read row by row."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Response, UploadFile

from backend.prompts import Report, parse
from backend.routes.services import Running

router = APIRouter(prefix="/prompts", tags=["prompts"])


@router.get("")
def every(services: Running) -> dict[str, Any]:
    """What each set is; no texts."""
    return {"prompts": services.prompts.list()}


@router.get("/{name}")
def one(
    services: Running,
    name: str,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=0, le=500)] = 50,
) -> dict[str, Any]:
    """A set and a page of its prompts."""
    found = services.prompts.find(name)
    return found.summary() | {"rows": [asdict(p) for p in found.prompts[offset : offset + limit]]}


@router.post("/preview")
def preview(services: Running, file: UploadFile) -> dict[str, Any]:
    """What an upload would become, row by row; nothing is kept."""
    return _read(services, file).to_json()


@router.post("", status_code=201)
def upload(
    services: Running, file: UploadFile, name: Annotated[str | None, Form(max_length=200)] = None
) -> dict[str, Any]:
    """Keep the good and mended rows; those refused are told with their reasons."""
    report = _read(services, file)
    return report.to_json() | services.prompts.add(report, name).summary()


@router.delete("/{name}", status_code=204)
def forget(services: Running, name: str) -> Response:
    """Forget an uploaded set; its answers stay."""
    services.prompts.delete(name)
    return Response(status_code=204)


def _read(services: Running, file: UploadFile) -> Report:
    return parse(file.file, (file.filename or "")[-200:], services.settings.upload_cap)
