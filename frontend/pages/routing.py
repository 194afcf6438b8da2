"""Who is chosen, how evenly, and whether the task decides."""

from __future__ import annotations

from frontend.client import Client
from frontend.pages.head import ask_all, page, rest, slots
from frontend.places import Place
from frontend.state import Material, PageState

CURATED = (
    Place("expert_load", span=7),
    Place("load_violation", span=5),
    Place("signature_similarity", span=7),
    Place("signature_effect", span=5),
    Place("signature_embedding", span=6, knobs={"method": "umap"}, title="Prompts on a map: UMAP"),
    Place("signature_embedding", span=6, knobs={"method": "pca"}, title="Prompts on a map: PCA"),
    Place("signature_classifier", span=5),
    Place("signature_baselines", span=7),
    Place("signature_outlier", span=7),
    Place("load_entropy", span=5),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The curated panels first, then whatever else the family has."""
    places = (*CURATED, *rest("routing", CURATED, material))
    lead = "Who is chosen, how evenly, and whether the task decides. Each figure of A stands beside its own step 0."
    return page("Routing", lead, await slots(client, state, places, material), (ask_all(),))
