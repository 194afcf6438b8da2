"""One streaming route to the backend, so the browser speaks to one origin. Nothing is buffered in either direction.

Written on bare ASGI: a framework's streaming response notices a gone browser only when it next has something to send,
and an event stream may be silent for seconds; here the disconnect itself closes the connection upstream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable

import httpx
from starlette.types import Message, Receive, Scope, Send

from frontend.client import IDLE_SECONDS

HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"trailers",
    b"transfer-encoding",
    b"upgrade",
}


class Proxy:
    """An ASGI application that passes every request on to `base_url`, path and query untouched."""

    def __init__(self, base_url: str, transport: httpx.AsyncBaseTransport | None = None):
        self.base_url = base_url
        timeout = httpx.Timeout(None, connect=5)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS)
        self._http = httpx.AsyncClient(timeout=timeout, transport=transport, limits=limits, follow_redirects=False)

    async def close(self) -> None:
        """Close the connections upstream."""
        await self._http.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        body = _Body(receive)
        pump = asyncio.create_task(self._pump(scope, body, send))
        gone = asyncio.create_task(body.disconnected.wait())
        watch = asyncio.create_task(body.watch())
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = pump.done()
            for task in (pump, gone, watch):
                task.cancel()
            await asyncio.gather(pump, gone, watch, return_exceptions=True)
        if finished and (error := pump.exception()):
            raise error

    async def _pump(self, scope: Scope, body: _Body, send: Send) -> None:
        try:
            response = await self._http.send(self._request(scope, body), stream=True)
        except httpx.TransportError as error:
            await _problem(send, f"The backend at {self.base_url} does not answer ({type(error).__name__}).")
            return
        try:
            headers = _own(_end_to_end(response.headers.raw))
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    def _request(self, scope: Scope, body: _Body) -> httpx.Request:
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = httpx.URL(self.base_url).copy_with(raw_path=path.split(b"?")[0] + query)
        headers = [(k, v) for k, v in _end_to_end(scope["headers"]) if k != b"host"]
        names = {k for k, _ in headers}
        if b"accept-encoding" not in names:
            headers.append((b"accept-encoding", b"identity"))
        carries = b"content-length" in names or any(k == b"transfer-encoding" for k, _ in scope["headers"])
        return httpx.Request(scope["method"], url, headers=headers, content=body.chunks() if carries else None)


class _Body:
    """The request's messages, read once: chunks for upstream first, then the word that the browser has gone."""

    def __init__(self, receive: Receive):
        self._receive = receive
        self._messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self.disconnected = asyncio.Event()

    async def watch(self) -> None:
        """Move messages over one at a time, so that an upload is never held; after its end wait for the disconnect."""
        more = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return
            if more:
                await self._messages.put(message)
                more = message.get("more_body", False)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        more = True
        while more:
            message = await self._messages.get()
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]


def _own(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what the server of the pages says of itself in every answer: twice is no valid answer."""
    return [(k, v) for k, v in headers if k not in (b"date", b"server")]


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    pairs = [(k.lower(), v) for k, v in headers]
    named = {name.strip().lower() for k, v in pairs if k == b"connection" for name in v.split(b",")}
    return [(k, v) for k, v in pairs if k not in HOP_BY_HOP and k not in named]


async def _problem(send: Send, detail: str) -> None:
    body = json.dumps({"type": "about:blank", "title": "Backend unreachable", "status": 502, "detail": detail}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 502, "headers": headers})
    await send({"type": "http.response.body", "body": body})
