"""What experts compute, whoever is routed to them (paper 2, first half)."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("jacobian_alignment", span=7),
    Place("jacobian_linear_share", span=5),
    Place("output_similarity", span=7),
    Place("jacobian_spectrum", span=5),
    Place("weight_similarity", span=7),
    Place("expert_contribution", span=5),
    Place("redundancy_map", span=7),
    Place("expert_saliency", span=5),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then the rest of the family."""
    places = (*CURATED, *rest("function", CURATED, material))
    lead = "What experts do to a token, whoever is routed to them: mean Jacobians, outputs, weights, shares."
    return page("Function", lead, await slots(client, state, places, material), (ask_all(),))
