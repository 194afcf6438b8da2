"""What stands around the panels of the page that compares: who, in which order of experts, and what differs."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State

from frontend import order
from frontend.client import Client, Refusal
from frontend.pages import compared, differs
from frontend.state import material_of, order_of, parse


def register(app: Dash, client: Client) -> None:
    """Each is drawn anew when the query or the material changes; it comes with its page."""

    @app.callback(
        Output("compared", "children"), Input("loc", "search"), Input("refresh", "data"), State("loc", "pathname")
    )
    async def draw_compared(search: str, refreshed: Any, path: str) -> Any:
        try:
            material = await material_of(client)
        except Refusal as refusal:
            return str(refusal)
        return compared.strip(parse(path, search, material), material, search)

    @app.callback(
        Output("differs", "children"), Input("loc", "search"), Input("refresh", "data"), State("loc", "pathname")
    )
    async def draw_differs(search: str, refreshed: Any, path: str) -> Any:
        try:
            material = await material_of(client)
        except Refusal as refusal:
            return str(refusal)
        return differs.table(parse(path, search, material), material)

    @app.callback(Output("order", "children"), Input("loc", "search"))
    async def draw_order(search: str | None) -> Any:
        return order.control(order_of(search))
