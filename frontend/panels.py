"""Filling panels: one request names the places of a page, and each panel comes as a line of its own once it is known.

It is no callback of Dash: there every panel was a request, and the browser walked all components at each of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from frontend.client import Client, Refusal
from frontend.filling import depends, failed, fill, refused, shown
from frontend.folded import told
from frontend.places import Place
from frontend.state import Material, PageState, material_of, parse

AT_ONCE = 4
"""So many places are looked up at a time: those asked for first come first, and none waits for a slow one."""
Content = dict[str, Any]


def route(client: Client) -> Callable[[Request], Awaitable[Response]]:
    """What answers a POST of `path`, `search` and `panels`: lines of JSON, each with the `index` of its panel."""

    async def panels(request: Request) -> Response:
        # another site's page can send a form or plain text here, and put questions; JSON it must ask leave for
        if not request.headers.get("content-type", "").startswith("application/json"):
            return Response("Panels are asked for as application/json.", 415, media_type="text/plain")
        wanted = await request.json()
        found = filled(client, wanted["path"], wanted["search"], wanted["panels"])
        return StreamingResponse((told(line) + "\n" async for line in found), media_type="application/x-ndjson")

    return panels


async def filled(client: Client, path: str, search: str, wanted: list[Mapping[str, Any]]) -> AsyncIterator[Content]:
    """The content of each wanted panel as it comes; none of one that shows already what this URL asks for."""
    try:
        material = await material_of(client)
    except Refusal as refusal:
        for index, one in enumerate(wanted):
            gone = refused(Place(**one["place"]), None, refusal)
            yield {"index": index} | shown(gone, f"refused: {refusal}", one.get("height"))
        return
    state, gate = parse(path, search, material), asyncio.Semaphore(AT_ONCE)

    async def found(index: int) -> Content | None:
        if wanted[index].get("ask"):  # all at once: what runs, runs in the order asked
            content = await _content(client, state, material, wanted[index])
        else:
            async with gate:
                content = await _content(client, state, material, wanted[index])
        return content and {"index": index} | content

    tasks = [asyncio.create_task(found(index)) for index in range(len(wanted))]
    try:
        for task in asyncio.as_completed(tasks):
            if (content := await task) is not None:
                yield content
    finally:
        for task in tasks:
            task.cancel()


async def _content(client: Client, state: PageState, material: Material, one: Mapping[str, Any]) -> Content | None:
    """`of` says what the panel shows now, `ask` that its questions are put, `failed` what its ended jobs said."""
    place = Place(**one["place"])
    now = depends(place, state, material)
    if one.get("of") == now:
        return None
    found = await fill(client, place, state, material, ask=bool(one.get("ask")))
    return shown(failed(found, one.get("failed") or ()), now, one.get("height"))
