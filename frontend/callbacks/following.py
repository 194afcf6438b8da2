"""A part of a page that follows the address: drawn anew when the query or the material changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, State

from frontend.client import Client, Refusal
from frontend.state import Material, PageState, material_of, parse


def follow(app: Dash, client: Client, place: str, draw: Callable[[PageState, Material, str], Any]) -> None:
    """Fill `place` with what `draw` makes of the page's state; without a backend, with the reason."""

    @app.callback(Output(place, "children"), Input("loc", "search"), Input("refresh", "data"), State("loc", "pathname"))
    async def drawn(search: str, refreshed: Any, path: str) -> Any:
        try:
            material = await material_of(client)
        except Refusal as refusal:
            return str(refusal)
        return draw(parse(path, search, material), material, search)
