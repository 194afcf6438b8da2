"""How routing and experts move while a run trains; every panel reads all steps of A's run, on one clock."""

from __future__ import annotations

from dash import html

from frontend.attributes import hyphened
from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState
from frontend.stepbar import strip

CURATED = (
    Place("centroid_map", span=12, sides="steps"),
    Place("router_row_map", span=12, sides="steps"),
    Place("expert_load", span=12, sides="series", title="Load of each expert"),
    Place("living_experts", span=6, sides="steps"),
    Place("router_saturation", span=6, sides="steps"),
    Place("jacobian_alignment", span=6, sides="series"),
    Place("grassmann_distance", span=6, sides="series"),
    Place("centroid_trajectory", span=12, sides="steps"),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The step strip, the curated panels by layer, then the rest of the family."""
    places = (*CURATED, *rest("trajectories", CURATED, material))
    lead = "One run from its first step to its last, in one frame and on one clock. The slider moves every figure."
    named = hyphened({"aria-label": "Step shown"})
    bar = html.Section(strip(state, material), id="step-strip", className="step-strip span-12", **named)
    return page("Trajectories", lead, [bar, *await slots(client, state, places, material)], (ask_all(),))
