"""Filling a place: from the URL's state to answers, a job, a price or a refusal, and on to a panel and its figure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from frontend.answer import Answer
from frontend.beyond import filtered
from frontend.client import Client, Job, NotAsked, Refusal
from frontend.clock import clock_of
from frontend.figure import Figure, height_of, sent
from frontend.order import by_number, in_order, reorders
from frontend.panel import Panel, plate
from frontend.places import Asked, Place, questions
from frontend.state import Material, PageState, knob_values
from frontend.views import Side, draw, draw_runs, draw_series

Outcome = Answer | NotAsked | Job | Refusal


@dataclass(frozen=True)
class Filled:
    """A panel and, where it has an answer, its figure in light colours."""

    panel: Panel
    figure: Figure | None = None


async def fill(client: Client, place: Place, state: PageState, material: Material, ask: bool = False) -> Filled:
    """Look the place's questions up, or with `ask` put them for good."""
    try:
        asked = questions(place, state, material)
    except Refusal as refusal:
        return refused(place, material, refusal)
    outcomes = await asyncio.gather(*(_outcome(client, a, ask) for a in asked))
    return compose(place, state, material, list(zip(asked, outcomes, strict=True)))


def refused(place: Place, material: Material | None, refusal: Refusal) -> Filled:
    """The panel of a place that cannot be asked: it says why."""
    measure = material.measure(place.measure) if material else None
    return Filled(Panel(place, measure or {}, "refused", message=str(refusal)))


async def _outcome(client: Client, asked: Asked, ask: bool) -> Outcome:
    try:
        return await (client.ask(asked.question) if ask else client.stored(asked.question))
    except Refusal as refusal:
        return refusal


def compose(place: Place, state: PageState, material: Material, found: Sequence[tuple[Asked, Outcome]]) -> Filled:
    """One panel from what came back for each of its questions."""
    measure = material.measure(place.measure) or {}
    jobs = tuple(o for _, o in found if isinstance(o, Job))
    sides = _sides(place, found)
    base = Panel(
        place=place,
        measure=measure,
        state="done",
        asked=tuple(a for a, _ in found),
        jobs=jobs,
        knobs=knob_values(measure, state.knobs, place.knobs),
        cost=_cost([o for _, o in found if isinstance(o, NotAsked)]),
        missing=any(not a.needed and isinstance(o, NotAsked) for a, o in found),
        again=any(isinstance(o, NotAsked) for _, o in found),
    )
    needed = [o for a, o in found if a.needed]
    # A series that waits for jobs shows the steps it has; one that was asked in part only can still be asked.
    grows = place.sides == "runs" or (place.sides == "series" and bool(jobs))
    if grows and any(side.role != "control" for side in sides):
        needed = [o for o in needed if isinstance(o, Answer)]
    if apart := _apart(place, found):
        needed, base = [o for o in needed if not _no(o)], replace(base, message=apart)
    refused = next((o for o in needed if isinstance(o, Refusal)), None)
    if refused is not None:
        return Filled(replace(base, state="refused", message=str(refused), jobs=()))
    if jobs and not all(isinstance(o, Answer) for o in needed):
        return Filled(replace(base, state="running"))
    if not all(isinstance(o, Answer) for o in needed):
        return _open(base, needed)
    return _drawn(replace(base, state="partial" if jobs else "done", sides=sides), state, material)


def _open(base: Panel, needed: Sequence[Outcome]) -> Filled:
    """Not asked yet; or asked before, and refused in a job, which the price of asking again must not hide."""
    left = [o for o in needed if not isinstance(o, Answer)]
    if all(map(_no, left)):
        return Filled(replace(base, state="failed", message=" ".join(dict.fromkeys(map(_no, left)))))
    return Filled(replace(base, state="not-asked"))


def _no(outcome: Outcome) -> str:
    """The sentence of a refusal, by the backend at once or by the job that was to answer."""
    return str(outcome) if isinstance(outcome, Refusal) else outcome.refused if isinstance(outcome, NotAsked) else ""


def _sides(place: Place, found: Sequence[tuple[Asked, Outcome]]) -> tuple[Side, ...]:
    """The answers as sides; where experts of several stand beside each other, all but A say in which order."""
    given = [(a, o) for a, o in found if isinstance(o, Answer)]
    matchings = {a.label: o for a, o in given if a.role == "matching"}
    sides = tuple(Side(a.role, a.label, o) for a, o in given if a.role != "matching")
    if not place.matching:
        return sides
    told = {role: partial(in_order, matching=matching) for role, matching in matchings.items()}
    ordered = (s.role != "a" and reorders(tuple(axis.name for axis in s.answer.axes)) for s in sides)
    return tuple(told.get(s.role, by_number)(s) if moves else s for s, moves in zip(sides, ordered, strict=True))


def _apart(place: Place, found: Sequence[tuple[Asked, Outcome]]) -> str:
    """Why some of those compared are not in the figure of the others; empty where nobody is left to draw."""
    refusals = [(a, said) for a, o in found if a.needed and (said := _no(o))]
    if place.sides not in ("pair", "both") or sum(a.role != "matching" for a, _ in refusals) == sum(
        a.needed and a.role != "matching" for a, _ in found
    ):
        return ""
    return " ".join(
        f"{a.label.upper()} stays in its own order: {said.rstrip('.')}."
        if a.role == "matching"
        else f"{a.role.upper()} {a.label} is not drawn: {said.rstrip('.')}."
        for a, said in refusals
    )


def _drawn(panel: Panel, state: PageState, material: Material) -> Filled:
    place, clock = panel.place, clock_of(material, state)
    if state.beyond:
        elsewhere = material.measure(place.difference) if place.difference else None
        sides, told = filtered(panel.sides, elsewhere["title"] if elsewhere else None)
        panel = replace(panel, sides=sides, filtered=told)
    if place.sides == "runs":
        figure, scale = draw_runs(panel.sides), None
    elif place.sides == "series" and clock is not None:
        figure, scale = draw_series(panel.sides, state.layer, clock, place.span), None
    else:
        clock = clock if place.sides == "steps" else None
        difference = "b - a" in panel.sides[0].answer.unit
        figure, scale = draw(panel.sides, state.layer, difference, place.span, clock)
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


def shown(filled: Filled, of: str, height: int | None = None) -> dict[str, Any]:
    """What the browser gets of it: plate, figure, what it was drawn `of`, and how high a figure it may have to grey.

    Without a new figure, a refusal greys the old one, which was `height` high; any other state drops it.
    """
    panel = filled.panel
    if filled.figure is not None:
        return {"plate": plate(panel), "figure": sent(filled.figure), "of": of, "height": panel.height}
    if height and panel.state in ("refused", "failed"):
        return {"plate": plate(replace(panel, old=True, height=height)), "of": of, "height": height}
    return {"plate": plate(panel), "figure": None, "of": of}


def depends(place: Place, state: PageState, material: Material) -> str:
    """All of the URL that a plate depends on: if it has not changed, the plate need not be drawn anew."""
    try:
        bodies = [a.question.body() for a in questions(place, state, material)]
    except Refusal as refusal:
        return f"refused: {refusal}"
    by_layer = "layer" in (material.measure(place.measure) or {}).get("axes", ())
    clock = clock_of(material, state) if place.sides in ("steps", "series") else None
    told = [state.layer if by_layer else None, state.a, state.b if place.sides == "runs" else None, state.beyond]
    return json.dumps([bodies, *told, clock.told if clock else None])
