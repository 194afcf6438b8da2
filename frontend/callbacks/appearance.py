"""Light and dark, in the browser alone: one switch recolours the interface, the tables and every figure."""

from __future__ import annotations

from dash import ClientsideFunction, Dash, Input, Output

from frontend.client import Client


def register(app: Dash, client: Client) -> None:
    """The theme's way from its store to the page; the figures are recoloured on that way."""
    app.clientside_callback(
        ClientsideFunction("geometry", "scheme"), Output("provider", "forceColorScheme"), Input("theme", "data")
    )
