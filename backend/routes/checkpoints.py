"""Checkpoints: list, inspect, register, forget. Only headers are read."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from backend.checkpoints import inspect
from backend.routes.services import Running

router = APIRouter(prefix="/checkpoints", tags=["checkpoints"])


class Registration(BaseModel):
    """A local folder or hub id to keep under a name."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(max_length=4096)
    revision: str | None = Field(None, max_length=200)
    name: str | None = Field(None, min_length=1, max_length=200)


class RunRegistration(BaseModel):
    """A folder of steps, or steps one by one, to keep as one run."""

    model_config = ConfigDict(extra="forbid")

    sources: list[Annotated[str, Field(max_length=4096)]] = Field(min_length=1, max_length=1000)
    name: str | None = Field(None, min_length=1, max_length=100, pattern=r"^[\w.-]+$")


@router.get("")
def every(services: Running) -> dict[str, Any]:
    """Those that lie under the roots, by run and step, then the registered ones."""
    return {"checkpoints": [c.to_json() for c in services.checkpoints.list()]}


@router.post("", status_code=201)
def register(services: Running, wanted: Registration) -> dict[str, Any]:
    """Keep a folder or hub id by its headers; a hub id's weights are fetched by the first question that reads them."""
    return services.checkpoints.register(wanted.source, wanted.revision, wanted.name).to_json()


@router.post("/runs", status_code=201)
def register_run(services: Running, wanted: RunRegistration) -> dict[str, Any]:
    """Keep all steps of a run in order: a folder of steps, or revisions of one repository as `owner/name@revision`."""
    kept = services.checkpoints.register_run(wanted.sources, wanted.name)
    return {"run": kept[0].run, "checkpoints": [c.to_json() for c in kept]}


@router.get("/inspect")
def look(
    services: Running,
    source: Annotated[str, Query(max_length=4096)],
    revision: Annotated[str | None, Query(max_length=200)] = None,
) -> dict[str, Any]:
    """What a folder or hub id holds, without keeping it."""
    return inspect(source, services.settings, revision).to_json()


@router.delete("", status_code=204)
def forget(services: Running, wanted: Annotated[str, Query(alias="id", max_length=4096)]) -> Response:
    """Forget a registered one; files and answers stay."""
    services.checkpoints.delete(wanted)
    return Response(status_code=204)
