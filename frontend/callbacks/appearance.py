"""Light and dark, in the browser alone: one switch recolours the interface, the tables and every figure."""

from __future__ import annotations

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State

from frontend.client import Client


def register(app: Dash, client: Client) -> None:
    """The theme's way from its store to the page and to each figure."""
    app.clientside_callback(
        ClientsideFunction("geometry", "scheme"), Output("provider", "forceColorScheme"), Input("theme", "data")
    )
    app.clientside_callback(
        ClientsideFunction("geometry", "draw"),
        Output({"type": "frame", "key": MATCH}, "children"),
        Input({"type": "light", "key": MATCH}, "data"),
        Input("theme", "data"),
        State("look", "data"),
    )
