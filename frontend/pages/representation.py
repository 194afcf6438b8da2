"""The subspaces of routed tokens (paper 2, second half)."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("grassmann_distance", span=7),
    Place("routed_spectrum", span=5),
    Place("subspace_overlap", span=7),
    Place("principal_angles", span=5),
    Place("centred_kernel_alignment", span=7),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then the rest of the family."""
    places = (*CURATED, *rest("representation", CURATED, material))
    lead = "Where the tokens of each expert lie: their subspaces, how far apart these are, and how wide."
    return page("Representation", lead, await slots(client, state, places, material), (ask_all(),))
