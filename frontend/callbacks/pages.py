"""From the URL to the shell and the page."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update

from frontend import contextbar, shell
from frontend.client import Client, Refusal
from frontend.pages import page_of
from frontend.state import Material, PageState, material_of, parse

FOLLOWS_QUERY = ("/checkpoints", "/prompts", "/live")


async def frame(client: Client, path: str | None, search: str | None) -> tuple[Any, Any]:
    """Rail and context bar for this URL; without a backend the rail alone, so that nobody is locked in."""
    try:
        material = await material_of(client)
    except Refusal:
        empty = Material((), (), ())
        return shell.rail(parse(path, search, empty), empty), []
    state = parse(path, search, material)
    return shell.rail(state, material), contextbar.context(state, material)


async def content(client: Client, path: str | None, search: str | None) -> Any:
    """The page itself; where the backend does not answer, the sentence and the way out."""
    try:
        material = await material_of(client)
        state: PageState = parse(path, search, material)
        return await page_of(state.path)(client, state, material)
    except Refusal as refusal:
        return shell.trouble(refusal)


def register(app: Dash, client: Client) -> None:
    """The two callbacks that follow the URL."""

    @app.callback(
        Output("rail", "children"),
        Output("context", "children"),
        Input("loc", "pathname"),
        Input("loc", "search"),
        Input("refresh", "data"),
    )
    async def draw_frame(path: str, search: str, refreshed: Any) -> tuple[Any, Any]:
        if refreshed:
            client.forget()
        return await frame(client, path, search)

    @app.callback(
        Output("main", "children"),
        Input("loc", "pathname"),
        Input("refresh", "data"),
        Input("loc", "search"),
        State("main", "children"),
    )
    async def draw_page(path: str, refreshed: Any, search: str, shown: Any) -> Any:
        # panels follow the query on their own; a page of panels drawn anew would lose their figures for a moment
        only_query = {t["prop_id"] for t in ctx.triggered} == {"loc.search"}
        if only_query and shown and path not in FOLLOWS_QUERY:
            return no_update
        return await content(client, path, search)
