"""Whether routers learn the geometry of their experts (paper 1)."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("router_gate_correlation", span=7),
    Place("rank_profile", span=5),
    Place("router_centroid_cosine", span=7),
    Place("gradient_interference", span=5),
    Place("router_gate_response", span=6),
    Place("expert_router_coupling", span=6),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then the rest of the family."""
    places = (*CURATED, *rest("coupling", CURATED, material))
    lead = "Whether a router row and the expert behind it follow the same directions, tokens and gradients."
    return page("Coupling", lead, await slots(client, state, places, material), (ask_all(),))
