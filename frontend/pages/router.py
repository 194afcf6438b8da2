"""What the router's own rows look like, apart from any prompt."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (Place("router_cosine", span=7), Place("router_common_mode", span=5))


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then the rest of the family."""
    places = (*CURATED, *rest("router", CURATED, material))
    lead = "The directions the router gives its experts, and how much of them all experts share."
    return page("Router", lead, await slots(client, state, places, material), (ask_all(),))
