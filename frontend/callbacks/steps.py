"""The strip of a run's steps follows the run that is A; the steps themselves move in the browser alone."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State

from frontend.client import Client, Refusal
from frontend.state import material_of, parse
from frontend.stepbar import strip


def register(app: Dash, client: Client) -> None:
    """Drawn anew when the query or the material changes; it comes with its page."""

    @app.callback(
        Output("step-strip", "children"),
        Input("loc", "search"),
        Input("refresh", "data"),
        State("loc", "pathname"),
        prevent_initial_call=True,
    )
    async def draw_strip(search: str, refreshed: Any, path: str) -> Any:
        try:
            material = await material_of(client)
        except Refusal as refusal:
            return str(refusal)
        return strip(parse(path, search, material), material)
