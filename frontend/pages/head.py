"""Title, lead and grid of a page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from dash import html

from frontend.attributes import hyphened
from frontend.client import Client
from frontend.filling import depends, fill, shown
from frontend.panel import icon, slot
from frontend.places import Place, sides_of
from frontend.state import Material, PageState

WITH_THE_PAGE = 2
"""So many panels come with the page itself: a round trip less for what is seen first."""
PATIENCE = 0.4
"""Seconds a page waits for them; whatever is slower comes by itself."""


def page(title: str, lead: str, parts: Sequence[Any], aside: Sequence[Any] = ()) -> list:
    """The page's h1, its one sentence, and its plates on twelve columns."""
    head = [html.Div([html.H1(title), html.P(lead)]), html.Span(className="grow"), *aside]
    return [html.Div(head, className="page-head"), html.Div(list(parts), className="grid")]


def ask_all() -> html.Button:
    """One click for every panel of the page that waits to be asked."""
    return html.Button(
        [icon("play"), "Ask what is missing"],
        type="button",
        className="small-button",
        **hyphened({"data-act": "ask-all"}),
    )


async def slots(client: Client, state: PageState, curated: Iterable[Place], material: Material) -> list:
    """The panels of the curated places whose measures the backend has; the first come filled, if they come at once."""
    places = [place for place in curated if material.measure(place.measure) is not None]
    first = await asyncio.gather(*(_at_once(client, place, state, material) for place in places[:WITH_THE_PAGE]))
    return [*first, *map(slot, places[WITH_THE_PAGE:])]


async def _at_once(client: Client, place: Place, state: PageState, material: Material) -> html.Div:
    try:
        filled = await asyncio.wait_for(fill(client, place, state, material), PATIENCE)
    except TimeoutError:
        return slot(place)
    return slot(place, shown(filled, depends(place, state, material)))


def rest(family: str, curated: Iterable[Place], material: Material) -> list[Place]:
    """All other measures of the family: they appear with no page knowing their names."""
    shown = {place.measure for place in curated}
    left = [m for m in material.measures if m["family"] == family and m["name"] not in shown]
    alone = len(left) % 2  # the last one of an odd number gets the whole row
    return [
        Place(m["name"], span=12 if alone and i == len(left) - 1 else 6, sides=sides_of(m)) for i, m in enumerate(left)
    ]
