"""The published experiments as repeated here: the results that ship, with the command that made each."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter

from backend.routes.services import Running

router = APIRouter(prefix="/experiments", tags=["experiments"])


@router.get("")
def every(services: Running) -> dict[str, Any]:
    """Name, title, source, command, date and rows of each."""
    files = sorted((services.settings.data / "experiments").glob("*.json"))
    return {"experiments": [{"name": file.stem} | json.loads(file.read_text("utf-8")) for file in files]}
