"""What stands before every route: a cap on bodies, a refusal of other sites' pages, headers that close the rest."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.problems import problem

SMALL_BODY = 1 << 20
FORM_OVERHEAD = 1 << 20
"""Bytes of a JSON body, and what a form may add to its file."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware; pure, so that event streams pass unbuffered."""

    def __init__(self, app: ASGIApp, upload_cap: int):
        self._app = app
        self._upload_cap = upload_cap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, count, pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        if headers.get("sec-fetch-site") == "cross-site":
            refusal = problem(403, "Another site's page may not call this service.")
            await refusal(scope, receive, closed)
            return
        cap = self._cap(headers)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > cap:
            await _drain(receive, cap)
            await _too_large(cap)(scope, receive, closed)
            return
        await self._app(scope, _counted(receive, cap), closed)

    def _cap(self, headers: Headers) -> int:
        kind = headers.get("content-type", "")
        if kind.startswith("application/octet-stream"):
            return self._upload_cap
        return self._upload_cap + FORM_OVERHEAD if kind.startswith("multipart/form-data") else SMALL_BODY


def _counted(receive: Receive, cap: int) -> Receive:
    """For a body that does not announce its length: stop reading it at the cap."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > cap:
            if message.get("more_body"):
                await _drain(receive, cap)
            raise HTTPException(413, _sentence(cap))
        return message

    return counted


async def _drain(receive: Receive, cap: int) -> None:
    """Read on for a while, keeping nothing: a client that sends all before it listens would see a broken pipe."""
    left = 4 * cap
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b"")) or 1
        if message["type"] != "http.request" or not message.get("more_body"):
            return


def _too_large(cap: int) -> ASGIApp:
    return problem(413, _sentence(cap), "Too large")


def _sentence(cap: int) -> str:
    return f"The request has more than {cap:,} bytes ({cap / (1 << 20):g} MiB), the most that is read here; send less."
