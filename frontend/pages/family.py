"""The page of any family of measures, made from the catalogue alone."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.state import Material, PageState


async def layout(client: Client, state: PageState, material: Material) -> list:
    """Every measure of the family, or a word that there is no such page."""
    name = state.path.strip("/")
    places = rest(name, (), material)
    if not places:
        return page("No such page", f"Nothing lives at {state.path}. The pages are in the rail on the left.", ())
    return page(
        name.capitalize(),
        f"All {len(places)} measures of this family, in the order of the catalogue.",
        await slots(client, state, places, material),
        (ask_all(),),
    )
