"""How routing and experts move while a run trains; every panel reads all steps of A's run."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("router_saturation", span=6, sides="steps"),
    Place("centroid_trajectory", span=6, sides="steps"),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then the rest of the family."""
    places = (*CURATED, *rest("trajectories", CURATED, material))
    lead = "One run from its first step to its last: when routes settle, and how far experts travel."
    return page("Trajectories", lead, await slots(client, state, places, material), (ask_all(),))
