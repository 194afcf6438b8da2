"""Two checkpoints, the same prompts, the same scales, and what lies between them."""

from __future__ import annotations

from dash import html

from frontend.client import Client
from frontend.pages.differs import differs
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("expert_load", sides="pair", span=12, title="Expert load, side by side", matching="expert_matching"),
    Place("load_difference", sides="both", span=7),
    Place("load_violation", sides="pair", span=5),
    Place("expert_matching", sides="both", span=12),
    Place("routing_agreement", sides="both", span=6),
    Place("routing_distance", sides="both", span=6),
    Place("prompt_difference", sides="both", span=7),
    Place("router_row_difference", sides="both", span=5),
    Place("jacobian_drift", sides="both", span=7),
    Place("subspace_drift", sides="both", span=5),
    Place("signature_similarity", sides="pair", span=12),
    Place("signature_effect", sides="pair", span=7),
    Place("load_entropy", sides="pair", span=5),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """Pairs on one scale, then the difference on its own, then every other measure of two sides."""
    places = (*CURATED, *rest("compare", CURATED, material))
    lead = "A beside B: the same prompts, one scale for both; which expert is which; and B − A on a scale of its own."
    return page(
        "Compare", lead, [*await slots(client, state, places, material), differs()], (html.Div(id="order"), ask_all())
    )
