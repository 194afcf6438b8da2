"""Trying an edit: one request that may take a while, and whatever comes of it on the page."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, no_update

from frontend.client import Client, Refusal
from frontend.pages import pruneplan, whatif
from frontend.state import material_of, parse


def register(app: Dash, client: Client) -> None:
    """The form's fields by kind, and its button."""

    @app.callback(
        *(Output(f"whatif-field-{name}", "style") for name in whatif.FIELDS),
        Input("whatif-kind", "value"),
    )
    async def show_fields(kind: str) -> tuple[dict[str, str], ...]:
        return tuple(whatif.shown(name, kind) for name in whatif.FIELDS)

    @app.callback(
        Output("whatif-result", "children"),
        Input("whatif-go", "n_clicks"),
        State("whatif-kind", "value"),
        *(State(f"whatif-{name}", "value") for name in whatif.FIELDS),
        State("loc", "pathname"),
        State("loc", "search"),
        running=[
            (Output("whatif-go", "disabled"), True, False),
            (Output("whatif-told", "children"), "Running the untouched model, the edit and random edits …", ""),
        ],
        prevent_initial_call=True,
    )
    async def try_edit(clicks: int | None, kind: str, *rest: Any) -> Any:
        if not clicks:
            return no_update
        *values, path, search = rest
        try:
            state = parse(path, search, await material_of(client))
            edit = whatif.spec(kind, dict(zip(whatif.FIELDS, values, strict=True)), state.b)
            told = await client.edit({"checkpoint": state.a or "", "prompts": state.prompts or "", "edit": edit})
        except Refusal as refusal:
            return whatif.refused(str(refusal))
        return whatif.result(told)

    _register_planner(app, client)


def _register_planner(app: Dash, client: Client) -> None:
    @app.callback(
        Output("prune-result", "children"),
        Input("prune-go", "n_clicks"),
        State("prune-ratio", "value"),
        State("loc", "pathname"),
        State("loc", "search"),
        running=[
            (Output("prune-go", "disabled"), True, False),
            (Output("prune-told", "children"), "Running every keep-list, and random ones …", ""),
        ],
        prevent_initial_call=True,
    )
    async def plan(clicks: int | None, ratio: str | None, path: str, search: str) -> Any:
        if not clicks:
            return no_update
        try:
            state = parse(path, search, await material_of(client))
            asked = {"checkpoint": state.a or "", "prompts": state.prompts or "", "ratio": ratio}
            return pruneplan.result(await client.prune(asked))
        except Refusal as refusal:
            return whatif.refused(str(refusal))
