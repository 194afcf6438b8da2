import asyncio
import json

import httpx
import pytest
import uvicorn

from frontend.client import IDLE_SECONDS, Client
from frontend.proxy import Proxy
from tests.frontend.fake_backend import create_fake

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def scope_of(method, path, query=b"", headers=()):
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": list(headers),
    }


async def call(proxy, scope, messages=({"type": "http.request", "body": b"", "more_body": False},)):
    """Run one request through the proxy and collect what it sends."""
    waiting, sent = list(messages), []

    async def receive():
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    await proxy(scope, receive, send)
    return sent[0], b"".join(m.get("body", b"") for m in sent[1:])


@pytest.fixture
async def proxy():
    made = Proxy("http://fake", httpx.ASGITransport(create_fake(everything_stored=True)))
    yield made
    await made.close()


async def test_a_request_passes_through_with_its_query(proxy):
    start, body = await call(proxy, scope_of("GET", "/api/v1/prompts/four-tasks", b"limit=3"))
    assert start["status"] == 200 and json.loads(body)["name"] == "four-tasks"


async def test_an_unknown_api_path_is_the_backends_own_404_in_json(proxy):
    start, body = await call(proxy, scope_of("GET", "/api/typo"))
    assert start["status"] == 404 and json.loads(body)["detail"] == "No route /api/typo."
    assert dict(start["headers"])[b"content-type"].startswith(b"application/problem+json")


async def test_a_backend_that_is_away_is_a_502_problem():
    proxy = Proxy("http://127.0.0.1:9")
    start, body = await call(proxy, scope_of("GET", "/api/v1/health"))
    assert start["status"] == 502 and json.loads(body)["status"] == 502 and "127.0.0.1:9" in json.loads(body)["detail"]
    assert dict(start["headers"])[b"content-type"] == b"application/problem+json"
    await proxy.close()


async def test_no_request_goes_into_a_connection_that_the_backend_may_be_closing():
    assert uvicorn.Config("none").timeout_keep_alive > 2 * IDLE_SECONDS
    used = []

    async def serve_once(reader, writer):
        """Closes without a word when a second request comes, as a server does at the end of its patience."""
        await reader.readuntil(b"\r\n\r\n")
        used.append(writer)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve_once, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    proxy, client = Proxy(address), Client(address)
    for wait in (IDLE_SECONDS + 0.1, 0):
        start, body = await call(proxy, scope_of("GET", "/api/v1/health"))
        assert (start["status"], body) == (200, b"ok")
        assert (await client._send("GET", "/health")).text == "ok"
        await asyncio.sleep(wait)
    assert len(used) == 4
    await proxy.close()
    await client.close()
    server.close()


async def test_hop_by_hop_headers_stay_here_and_others_pass():
    seen = {}

    def answer(request):
        seen.update(request.headers)
        headers = {"connection": "x-private", "x-private": "1", "keep-alive": "5", "etag": "kept", "upgrade": "no"}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"ok"))

    proxy = Proxy("http://fake", httpx.MockTransport(answer))
    sent = ((b"connection", b"close, x-mine"), (b"x-mine", b"1"), (b"te", b"trailers"), (b"accept", b"text/plain"))
    start, _ = await call(proxy, scope_of("GET", "/api/v1/health", headers=(*sent, (b"host", b"front"))))
    returned = {k for k, _ in start["headers"]}
    assert b"etag" in returned and not returned & {b"connection", b"x-private", b"keep-alive", b"upgrade"}
    assert "x-mine" not in seen and "te" not in seen and seen["accept"] == "text/plain" and seen["host"] == "fake"
    await proxy.close()


async def test_an_upload_is_read_piece_by_piece_as_upstream_takes_it():
    pieces, taken = 200, 0
    held = []

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal taken
            async for _ in request.stream:
                taken += 1
                await asyncio.sleep(0)
                held.append(given - taken)
            return httpx.Response(200, stream=httpx.ByteStream(str(taken).encode()))

    given = 0
    done = asyncio.Event()

    async def receive():
        nonlocal given
        if given == pieces:
            await done.wait()
        given += 1
        return {"type": "http.request", "body": b"x" * 1000, "more_body": given < pieces}

    proxy, sent = Proxy("http://fake", Slow()), []

    async def send(message):
        sent.append(message)

    headers = ((b"content-length", str(pieces * 1000).encode()),)
    await proxy(scope_of("POST", "/api/v1/prompts", headers=headers), receive, send)
    assert sent[1]["body"] == b"200" and max(held) <= 4
    await proxy.close()


async def test_a_browser_that_leaves_closes_the_stream_upstream():
    closed, opened = asyncio.Event(), asyncio.Event()

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self):
            yield b"event: progress\n\n"
            opened.set()
            await asyncio.Event().wait()

        async def aclose(self):
            closed.set()

    proxy = Proxy("http://fake", httpx.MockTransport(lambda request: httpx.Response(200, stream=Endless())))
    first = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if first:
            return first.pop()
        await opened.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    await asyncio.wait_for(proxy(scope_of("GET", "/api/v1/jobs/x/events"), receive, send), 5)
    assert closed.is_set()
    await proxy.close()
