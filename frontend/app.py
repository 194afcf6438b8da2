"""The pages on one ASGI application: Dash on FastAPI, and the proxy to the backend under /api.

python -m uvicorn --factory frontend.app:create_app --port 8050
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from dash import Dash
from fastapi import FastAPI

from frontend import callbacks, panels, plotlyjs, sharing, shell, theme
from frontend.client import Client, first_request
from frontend.folded import told
from frontend.panel import GRAPH
from frontend.proxy import Proxy

TITLE = "moe-geometry"
INDEX = """<!doctype html>
<html lang="en">
<head>{%metas%}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="The geometry of the experts of Mixture-of-Experts models">
<title>{%title%}</title>{%favicon%}{%css%}<style>TOKENS</style>
<script id="look" type="application/json">LOOK</script></head>
<body><a class="skip" href="#main">Skip to figures</a>{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def create_app(backend_url: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The frontend of the backend at `backend_url` (else BACKEND_URL, else http://127.0.0.1:8000).

    `transport` replaces the network, for tests.
    """
    url = (backend_url or os.environ.get("BACKEND_URL") or "http://127.0.0.1:8000").rstrip("/")
    client, proxy = Client(url, transport), Proxy(url, transport)

    @asynccontextmanager
    async def lifespan(server: FastAPI) -> AsyncIterator[None]:
        # Dash on FastAPI collects assets/ at the first request to "/": without one, a permalink opened first comes
        # without CSS and keys
        await first_request(server)
        yield
        await client.close()
        await proxy.close()

    server = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    server.mount("/api", proxy)
    server.add_route("/panels", panels.route(client), methods=["POST"])
    server.add_route("/report", sharing.route(client), methods=["GET"])
    server.add_route(plotlyjs.ASKED, plotlyjs.serve, methods=["GET"])
    app = Dash(
        __name__,
        server=server,  # pyright: ignore[reportArgumentType]
        title=TITLE,
        update_title="",
        assets_ignore=plotlyjs.FILE.name,  # asked for when the first figure is drawn
        suppress_callback_exceptions=True,
        enable_mcp=False,
    )
    look = {"config": GRAPH, "template": theme.TEMPLATE, "dark": theme.pairs()}
    app.index_string = INDEX.replace("TOKENS", theme.css()).replace("LOOK", told(look))
    app.layout = shell.layout()
    callbacks.register(app, client)
    server.state.dash = app
    return server
