"""Traces: keep routes or counts that were made elsewhere. An upload lies in a folder of its own while it is read."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from fastapi import APIRouter, Form, UploadFile

from backend.errors import Refusal
from backend.prompts.parse import too_large
from backend.routes.services import Running
from backend.traces import Options, formats

router = APIRouter(prefix="/traces", tags=["traces"])

_Number = Annotated[int | None, Form(ge=1, le=10_000_000)]


@router.get("/formats")
def known() -> dict[str, Any]:
    """The formats that are read."""
    return {"formats": [{"name": name, "title": module.TITLE} for name, module in formats().items()]}


@router.post("", status_code=201)
def add(
    services: Running,
    file: UploadFile,
    name: Annotated[str, Form(max_length=200)],
    k: _Number = None,
    experts: _Number = None,
    window: _Number = None,
    layers: Annotated[str | None, Form(max_length=2000)] = None,
    form: Annotated[str | None, Form(alias="format", max_length=100)] = None,
    prompts: Annotated[str | None, Form(max_length=200)] = None,
) -> dict[str, Any]:
    """The trace as a checkpoint; what the file leaves open is asked for in the refusal."""
    options = Options.said({"format": form, "k": k, "experts": experts, "layers": layers, "window": window})
    of = services.prompts.find(prompts) if prompts else None
    with TemporaryDirectory(prefix="import-", dir=services.settings.store) as folder:
        path = _spooled(file, Path(folder), services.settings.upload_cap)
        return services.traces.add(path, name, options, of).to_json()


def _spooled(file: UploadFile, folder: Path, cap: int) -> Path:
    """The upload under its own last name, whose ending says what it is."""
    name = PurePath((file.filename or "").replace("\\", "/")).name[-200:]
    if not name or name.startswith(".") or "\0" in name:
        raise Refusal(f"{file.filename!r} is no name of a file.")
    if file.file.seek(0, 2) > cap:
        raise too_large(name, cap)
    file.file.seek(0)
    path = folder / name
    with path.open("wb") as target:
        shutil.copyfileobj(file.file, target)
    return path
