"""The API as one ASGI app: `uvicorn --factory backend.app:create_app --workers 1` (one process owns the store)."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from backend import routes
from backend.guard import Guard
from backend.problems import install, problem
from backend.runners import Runner
from backend.services import open_services
from backend.settings import Settings

PREFIX = "/api/v1"


def create_app(settings: Settings | None = None, runner: Runner | None = None) -> FastAPI:
    """The app; store and runner are opened when it starts and closed when it stops.

    Args:
        settings: From the environment if left out.
        runner: Another runner than the local one.
    """
    settings = settings or Settings.from_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with open_services(settings, runner) as services:
            app.state.services = services
            services.store.announce(address(settings))
            yield

    app = FastAPI(
        title="moe-geometry",
        version=version("moe-geometry"),
        lifespan=lifespan,
        openapi_url=f"{PREFIX}/openapi.json",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(Guard, upload_cap=settings.upload_cap)
    install(app)
    for module in sorted(m.name for m in pkgutil.iter_modules(routes.__path__)):
        router = getattr(importlib.import_module(f"{routes.__name__}.{module}"), "router", None)
        if router is not None:
            app.include_router(router, prefix=PREFIX)
    app.add_api_route(
        "/api/{rest:path}", _unknown, methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
    )
    return app


def address(settings: Settings) -> str:
    """Where this machine's own programs reach the app."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


async def _unknown(request: Request) -> JSONResponse:
    return problem(404, f"There is nothing at {request.method} {request.url.path}; the API lies under {PREFIX}.")
