"""One callback fills every panel of every page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dash import MATCH, Dash, Input, Output, State, ctx, no_update

from frontend.client import Client, Refusal
from frontend.figure import sent
from frontend.filling import Filled, depends, failed, fill, refused
from frontend.panel import plate
from frontend.places import Place
from frontend.state import material_of, parse


def register(app: Dash, client: Client) -> None:
    """Pattern matching brings every place here, whatever its page."""

    @app.callback(
        Output({"type": "plate", "key": MATCH}, "children"),
        Output({"type": "light", "key": MATCH}, "data"),
        Output({"type": "seen", "key": MATCH}, "data"),
        Input("loc", "search"),
        Input({"type": "shown", "key": MATCH}, "data"),
        Input({"type": "asked", "key": MATCH}, "data"),
        Input({"type": "finished", "key": MATCH}, "data"),
        State({"type": "place", "key": MATCH}, "data"),
        State({"type": "seen", "key": MATCH}, "data"),
        State("loc", "pathname"),
        prevent_initial_call=True,  # a panel may come with its page, filled; the others say when they are shown
    )
    async def fill_panel(search: str, shown: Any, asked: Any, finished: Any, *kept: Any) -> tuple:
        stored, seen, path = kept
        place, trigger, seen = Place(**stored), ctx.triggered_id, seen or {}
        what = trigger.get("type") if isinstance(trigger, dict) else "loc"
        try:
            material = await material_of(client)
        except Refusal as refusal:
            return _shown(refused(place, None, refusal), f"refused: {refusal}", seen)
        state = parse(path, search, material)
        now = depends(place, state, material)
        if what == "loc" and seen.get("of") == now:
            return no_update, no_update, no_update
        filled = await fill(client, place, state, material, ask=what == "asked")
        if what == "finished":
            filled = failed(filled, (finished or {}).get("failed", ()))
        return _shown(filled, now, seen)


def _shown(filled: Filled, now: str, seen: dict) -> tuple:
    """Plate, figure and what to keep; where there is no new figure, a refusal greys the old one."""
    if filled.figure is not None:
        return plate(filled.panel), sent(filled.figure), filled.seen(now)
    height = seen.get("height")
    if height and filled.panel.state in ("refused", "failed"):
        return plate(replace(filled.panel, old=True, height=height)), no_update, {"of": now, "height": height}
    return plate(filled.panel), None, filled.seen(now)
