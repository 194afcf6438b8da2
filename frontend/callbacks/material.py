"""Registering checkpoints, the report on an uploaded prompt file, and the tables of facts."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, no_update

from frontend.callbacks.following import follow
from frontend.client import Client, Refusal
from frontend.pages import checkpoints, prompts


def register(app: Dash, client: Client) -> None:
    """Forms that change what the backend holds; the page redraws by way of the `refresh` store."""

    @app.callback(
        Output("register-told", "children"),
        Output("refresh", "data", allow_duplicate=True),
        Input("register-go", "n_clicks"),
        State("register-source", "value"),
        State("refresh", "data"),
        prevent_initial_call=True,
    )
    async def register_checkpoint(clicks: int | None, source: str | None, refreshed: int | None) -> tuple[Any, Any]:
        if not clicks:
            return no_update, no_update
        if not (source or "").strip():
            return checkpoints.told(
                "Write the path of a checkpoint folder, or a hub id such as owner/name.", wrong=True
            ), no_update
        try:
            added = await client.register(str(source).strip())
        except Refusal as refusal:
            return checkpoints.told(str(refusal), wrong=True), no_update
        return checkpoints.told(f"{added['id']} is registered."), (refreshed or 0) + 1

    @app.callback(Output("upload-report", "children"), Input("report", "data"))
    async def draw_report(report: dict[str, Any] | None) -> Any:
        return prompts.report(report) if report else []

    _register_runs(app, client)
    _register_tables(app, client)


def _register_runs(app: Dash, client: Client) -> None:
    @app.callback(
        Output("run-told", "children"),
        Output("refresh", "data", allow_duplicate=True),
        Input("run-go", "n_clicks"),
        State("run-sources", "value"),
        State("run-name", "value"),
        State("refresh", "data"),
        prevent_initial_call=True,
    )
    async def register_run(clicks: int | None, sources: str | None, name: str | None, refreshed: int | None) -> tuple:
        if not clicks:
            return no_update, no_update
        lines = [line.strip() for line in (sources or "").splitlines() if line.strip()]
        if not lines:
            return checkpoints.told(
                "Write a folder of steps, or owner/name@revision once a line.", wrong=True
            ), no_update
        try:
            added = await client.register_run(lines, (name or "").strip() or None)
        except Refusal as refusal:
            return checkpoints.told(str(refusal), wrong=True), no_update
        count = len(added["checkpoints"])
        return checkpoints.told(f"{added['run']} is registered with {count} steps."), (refreshed or 0) + 1


def _register_tables(app: Dash, client: Client) -> None:
    follow(app, client, "facts-of-a", lambda state, material, _: checkpoints.facts(state.a, material))
