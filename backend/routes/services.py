"""How a route gets at the running backend: `def route(services: Running)`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from backend.edits.asking import Means
from backend.services import Services


def running(request: Request) -> Services:
    """The services of the app that got this request."""
    return request.app.state.services


Running = Annotated[Services, Depends(running)]


def means(services: Services) -> Means:
    """What an edit of this backend's checkpoints is run with."""
    found = services.checkpoints
    return Means(found.find, found.bring, services.runner, services.settings.memory_budget)
