"""Two to four checkpoints, the same prompts, the same scales, and what lies between each and the first."""

from __future__ import annotations

from dash import html

from frontend.client import Client
from frontend.pages.compared import compared
from frontend.pages.differs import differs
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

MATCHING = "expert_matching"
CURATED = (
    Place(
        "expert_load",
        sides="pair",
        span=12,
        title="Expert load, side by side",
        matching=MATCHING,
        difference="load_difference",
    ),
    Place("load_violation", sides="pair", span=6, difference="violation_difference"),
    Place("signature_effect", sides="pair", span=6),
    Place("violation_difference", sides="both", span=6),
    Place("effect_difference", sides="both", span=6),
    Place("load_entropy", sides="pair", span=6, difference="entropy_difference"),
    Place("entropy_difference", sides="both", span=6),
    Place("load_difference", sides="both", span=12),
    Place(MATCHING, sides="both", span=12),
    Place("routing_agreement", sides="both", span=6),
    Place("routing_distance", sides="both", span=6),
    Place("prompt_difference", sides="both", span=12),
    Place("router_row_difference", sides="both", span=7),
    Place("router_drift", sides="both", span=5),
    Place("jacobian_drift", sides="both", span=7),
    Place("subspace_drift", sides="both", span=5),
    Place("signature_similarity", sides="pair", span=12),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """All on one scale, then the differences on their own, then every other measure of two sides."""
    places = (*CURATED, *rest("compare", CURATED, material))
    lead = "The same prompts, one scale for all; which expert is which; and what each has more than A, the baseline."
    parts = [compared(), *await slots(client, state, places, material), differs()]
    return page("Compare", lead, parts, (html.Div(id="order"), ask_all()))
