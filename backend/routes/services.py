"""How a route gets at the running backend: `def route(services: Running)`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from backend.services import Services


def running(request: Request) -> Services:
    """The services of the app that got this request."""
    return request.app.state.services


Running = Annotated[Services, Depends(running)]
