"""The page that follows a training run: one look at a time, and nothing is drawn anew that has not moved."""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, no_update

from frontend.client import Client, Refusal
from frontend.pages import live


def register(app: Dash, client: Client) -> None:
    """The beat."""

    @app.callback(
        Output({"type": "live-frame", "key": ALL}, "data-figure"),
        Output({"type": "live-reading", "key": ALL}, "children"),
        Output("live-trainers", "children"),
        Output("live-seen", "data"),
        Input("live-beat", "n_intervals"),
        State("live-chosen", "data"),
        State("live-seen", "data"),
        State({"type": "live-frame", "key": ALL}, "id"),
    )
    async def follow(beat: int | None, chosen: list[str], seen: Any, places: list[dict[str, str]]) -> tuple:
        still = ([no_update] * len(places), [no_update] * len(places), no_update, no_update)
        try:
            runs = await live.read(client, chosen or [])
        except Refusal:
            return still
        now = [[run["name"], len(run["points"]), run["points"][-1]["step"] if run["points"] else 0] for run in runs]
        if not runs or now == seen:
            return still
        drawn = live.figures(runs)
        keys = [place["key"] for place in places]
        return [drawn[key] for key in keys], [live.reading(runs, key) for key in keys], live.trainers(runs), now
