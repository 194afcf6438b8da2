"""Filling a panel: from its place and the URL to an answer, a job, a price or a refusal, then to the plate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go
from dash import MATCH, Dash, Input, Output, State, ctx, no_update

from frontend.answer import Answer
from frontend.callbacks.pages import material_of
from frontend.client import Client, Job, NotAsked, Refusal
from frontend.panel import Panel, plate
from frontend.places import Asked, Place, questions
from frontend.state import Material, PageState, knob_values, parse
from frontend.views import Side, draw, draw_runs, height_of

Outcome = Answer | NotAsked | Job | Refusal


@dataclass(frozen=True)
class Filled:
    """A panel and, where it has an answer, its figure in light colours."""

    panel: Panel
    figure: go.Figure | None = None


async def fill(client: Client, place: Place, location: tuple[str, str], ask: bool) -> Filled:
    """Look the place's questions up, or with `ask` put them for good."""
    material: Material | None = None
    try:
        material = await material_of(client)
        state = parse(*location, material)
        asked = questions(place, state, material)
    except Refusal as refusal:
        measure = material.measure(place.measure) if material else None
        return Filled(Panel(place, measure or {}, "refused", message=str(refusal)))
    outcomes = await asyncio.gather(*(_outcome(client, a, ask) for a in asked))
    return compose(place, state, material, list(zip(asked, outcomes, strict=True)))


async def _outcome(client: Client, asked: Asked, ask: bool) -> Outcome:
    try:
        return await (client.ask(asked.question) if ask else client.stored(asked.question))
    except Refusal as refusal:
        return refusal


def compose(place: Place, state: PageState, material: Material, found: Sequence[tuple[Asked, Outcome]]) -> Filled:
    """One panel from what came back for each of its questions."""
    measure = material.measure(place.measure) or {}
    jobs = tuple(o for _, o in found if isinstance(o, Job))
    sides = _sides(found)
    base = Panel(
        place=place,
        measure=measure,
        state="done",
        asked=tuple(a for a, _ in found),
        jobs=jobs,
        knobs=knob_values(measure, state.knobs, place.knobs),
        cost=_cost([o for _, o in found if isinstance(o, NotAsked)]),
        missing=any(not a.needed and isinstance(o, NotAsked) for a, o in found),
    )
    needed = [o for a, o in found if a.needed]
    if place.sides == "runs" and sides:
        needed = [o for o in needed if isinstance(o, Answer)]
    refused = next((o for o in needed if isinstance(o, Refusal)), None)
    if refused is not None:
        return Filled(replace(base, state="refused", message=str(refused), jobs=()))
    if jobs and not all(isinstance(o, Answer) for o in needed):
        return Filled(replace(base, state="running"))
    if not all(isinstance(o, Answer) for o in needed):
        return Filled(replace(base, state="not-asked"))
    return _drawn(replace(base, state="partial" if jobs else "done", sides=sides), state)


def _sides(found: Sequence[tuple[Asked, Outcome]]) -> tuple[Side, ...]:
    return tuple(Side(a.role, a.label, o) for a, o in found if isinstance(o, Answer))


def _drawn(panel: Panel, state: PageState) -> Filled:
    if panel.place.sides == "runs":
        figure, scale = draw_runs(panel.sides), None
    else:
        figure, scale = draw(panel.sides, state.layer, difference=panel.place.sides == "both")
    return Filled(replace(panel, scale=scale, height=height_of(figure)), figure)


def _cost(prices: Sequence[NotAsked]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in prices:
        for name, value in one.cost.items():
            if isinstance(value, int | float):
                total[name] = max(total.get(name, 0), value) if name == "memory_bytes" else total.get(name, 0) + value
    return total


def failed(filled: Filled, sentences: Sequence[str]) -> Filled:
    """A job that failed says so on the plate that waited for it."""
    if filled.panel.state != "not-asked" or not sentences:
        return filled
    return Filled(replace(filled.panel, state="failed", message=" ".join(dict.fromkeys(sentences))))


async def fingerprint(client: Client, place: Place, location: tuple[str, str]) -> str:
    """All of the URL that a plate depends on: if it has not changed, the plate need not be drawn anew."""
    try:
        material = await material_of(client)
        state = parse(*location, material)
        bodies = [a.question.body() for a in questions(place, state, material)]
    except Refusal as refusal:
        return f"refused: {refusal}"
    by_layer = "layer" in (material.measure(place.measure) or {}).get("axes", ())
    return json.dumps([bodies, state.layer if by_layer else None, state.a, state.b if place.sides == "runs" else None])


def register(app: Dash, client: Client) -> None:
    """One pattern-matching callback fills every panel of every page."""

    @app.callback(
        Output({"type": "plate", "key": MATCH}, "children"),
        Output({"type": "light", "key": MATCH}, "data"),
        Output({"type": "seen", "key": MATCH}, "data"),
        Input("loc", "search"),
        Input({"type": "asked", "key": MATCH}, "data"),
        Input({"type": "finished", "key": MATCH}, "data"),
        State({"type": "place", "key": MATCH}, "data"),
        State({"type": "seen", "key": MATCH}, "data"),
        State("loc", "pathname"),
    )
    async def fill_panel(search: str, asked: Any, finished: Any, stored: dict, seen: dict | None, path: str) -> tuple:
        place, location, trigger = Place(**stored), (path, search), ctx.triggered_id
        what, seen = trigger.get("type") if isinstance(trigger, dict) else trigger, seen or {}
        now = await fingerprint(client, place, location)
        if what == "loc" and seen.get("of") == now:
            return no_update, no_update, no_update
        filled = await fill(client, place, location, ask=what == "asked")
        if what == "finished":
            filled = failed(filled, (finished or {}).get("failed", ()))
        if filled.figure is not None:
            return plate(filled.panel), filled.figure.to_dict(), {"of": now, "height": filled.panel.height}
        height = seen.get("height")
        if height and filled.panel.state in ("refused", "failed"):
            return plate(replace(filled.panel, old=True, height=height)), no_update, {"of": now, "height": height}
        return plate(filled.panel), None, {"of": now}
