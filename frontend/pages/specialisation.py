"""Who is used for what."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("domain_specialisation", span=7),
    Place("expert_contrast", span=5),
    Place("token_class_specialisation", span=12),
    Place("coactivation", span=7),
    Place("vocabulary_specialisation", span=5),
    Place("cross_layer_transition", span=7),
    Place("token_context_split", span=5),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then the rest of the family."""
    places = (*CURATED, *rest("specialisation", CURATED, material))
    lead = "What an expert is for: domains, words, contexts, and which experts go together."
    return page("Specialisation", lead, await slots(client, state, places, material), (ask_all(),))
