"""Jobs as the browser reports them: its script listens to the event streams, these callbacks only draw."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output

from frontend import joblist
from frontend.client import Client, Refusal
from frontend.state import Material, material_of


def register(app: Dash, client: Client) -> None:
    """The drawer and the page draw the same list."""

    @app.callback(Output("drawer-jobs", "children"), Output("jobs-chip", "children"), Input("jobs-data", "data"))
    async def draw_jobs(jobs: list[dict[str, Any]] | None) -> tuple[Any, Any]:
        try:
            material = await material_of(client)
        except Refusal:
            material = Material((), (), ())
        return joblist.listing(jobs or [], material), joblist.chip(jobs or [])

    @app.callback(Output("page-jobs", "children"), Input("jobs-data", "data"))
    async def draw_page_jobs(jobs: list[dict[str, Any]] | None) -> Any:
        try:
            material = await material_of(client)
        except Refusal:
            material = Material((), (), ())
        return joblist.listing(jobs or [], material)
