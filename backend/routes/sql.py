"""One read-only SELECT over what the store keeps in long form."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from backend.routes.services import Running

router = APIRouter(tags=["sql"])


class Query(BaseModel):
    """The text of the query."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(max_length=100_000)


@router.post("/sql")
def sql(services: Running, wanted: Query) -> dict[str, Any]:
    """At most 10,000 rows within 10 seconds; `truncated` says that there were more."""
    return services.store.sql(wanted.query).to_json()
