"""The report of what a page compares, as one file to keep: what the store holds, and for the rest why not.

It is the file of `moe-geometry compare --report`. Nothing is asked for it: looking must not start a run.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from frontend.answer import Answer
from frontend.client import Client, NotAsked, Refusal
from frontend.order import SHOWN
from frontend.pages.compare import MATCHING
from frontend.places import Asked, Place, questions
from frontend.report import build
from frontend.state import COMPARES, Material, PageState, knob_values, material_of, parse

NOT_ASKED = "it is not asked yet; its panel on the page “{}” asks it, and the next report has it."
UNDER_WAY = "it is being measured; take the report again when it is done."


def route(client: Client) -> Callable[[Request], Awaitable[Response]]:
    """What answers a GET with the query of the page that compares."""

    async def report(request: Request) -> Response:
        try:
            material = await material_of(client)
            told = await compared(client, parse(COMPARES, request.url.query, material), material)
        except Refusal as refusal:
            return Response(str(refusal), refusal.status, media_type="text/plain")
        page = await asyncio.to_thread(build, told)  # figures and 1.5 MB of plotly.js: not on the loop of everyone
        name = re.sub(r"[^\w.-]+", "-", "-".join(told["checkpoints"]))
        kept = {"content-disposition": f'attachment; filename="{name}.html"', "x-content-type-options": "nosniff"}
        return Response(page, media_type="text/html; charset=utf-8", headers=kept)

    return report


async def compared(client: Client, state: PageState, material: Material) -> dict[str, Any]:
    """Each of the others against A, as the command line tells it; raises `Refusal` where nobody is chosen."""
    matched = await _found(client, Place(MATCHING, sides="both", knobs=SHOWN), state, material)
    # the page's own panel shows all pairs: where nobody asked for the match, that is what the store holds
    every = await _found(client, Place(MATCHING, sides="both"), state, material)
    places = [
        Place(m["name"], sides="both")
        for m in material.measures
        if list(m.get("sides") or ()) == ["a", "b"] and m["name"] != MATCHING
    ]
    differences = [await _found(client, place, state, material) for place in places]
    pairs = [
        {
            "a": asked.question.checkpoints[0],
            "b": asked.question.checkpoints[1],
            "matching": matching if "answer" in matching else every[at][1],
            "differences": [each[at][1] for each in differences],
        }
        for at, (asked, matching) in enumerate(matched)
    ]
    names = [pairs[0]["a"], *(pair["b"] for pair in pairs)]
    command = _command(names, state, material)
    return {"checkpoints": names, "prompts": state.prompts, "command": command, "pairs": pairs}


async def _found(client: Client, place: Place, state: PageState, material: Material) -> list[tuple[Asked, dict]]:
    asked, measure = questions(place, state, material), material.measure(place.measure) or {}
    outcomes = await asyncio.gather(*(_stored(client, each, measure) for each in asked))
    return [(each, _told(measure, outcome)) for each, outcome in zip(asked, outcomes, strict=True)]


async def _stored(client: Client, asked: Asked, measure: Mapping[str, Any]) -> Answer | str:
    """The answer, or the sentence that says why there is none."""
    try:
        outcome = await client.stored(asked.question)
    except Refusal as refusal:
        return str(refusal)
    if isinstance(outcome, Answer):
        return outcome
    if not isinstance(outcome, NotAsked):
        return UNDER_WAY
    return outcome.refused or NOT_ASKED.format(measure.get("family"))


def _told(measure: Mapping[str, Any], outcome: Answer | str) -> dict[str, Any]:
    described = {name: measure.get(name) for name in ("title", "source", "caveat")}
    return described | ({"refused": outcome} if isinstance(outcome, str) else {"answer": outcome})


def _command(names: list[str], state: PageState, material: Material) -> str:
    measure = material.measure(MATCHING) or {"name": MATCHING, "knobs": []}
    evidence = knob_values(measure, state.knobs, {}).get("evidence")
    words = ["moe-geometry", "compare", *names, "--prompts", state.prompts or ""]
    return shlex.join([*words, *(["--evidence", str(evidence)] if evidence else [])])
