"""What stands around the panels of the page that compares: who, in which order of experts, and what differs."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output

from frontend import order
from frontend.callbacks.following import follow
from frontend.client import Client
from frontend.pages import compared, differs
from frontend.state import order_of


def register(app: Dash, client: Client) -> None:
    """Each is drawn anew when the query or the material changes; it comes with its page."""
    follow(app, client, "compared", lambda state, material, search: compared.strip(state, material, search))
    follow(app, client, "differs", lambda state, material, _: differs.table(state, material))

    @app.callback(Output("order", "children"), Input("loc", "search"))
    async def draw_order(search: str | None) -> Any:
        return order.control(order_of(search))
