"""The prompts as points of a plane: near each other if they use the same experts."""

from __future__ import annotations

from typing import Literal

from analysis.knob import Seed
from analysis.measure import Values, measure
from analysis.projections.plane import Neighbours, axis_labels, plane
from analysis.result import Axis
from analysis.signatures import Weighting, directions, said, signatures
from analysis.statistic import State

Method = Literal["pca", "umap"]


@measure(
    title="Signature map",
    question="Do prompts gather by what they are about?",
    unit="coordinates (no unit)",
    family="routing",
    source="Signatures: Avinash 2026, arXiv 2603.11114; PCA: Pearson 1901; UMAP: McInnes et al. 2018, arXiv 1802.03426",
    axes=("prompt", "coordinate"),
    interval="see trustworthiness",
    null="coordinates have no chance value; see trustworthiness",
    slow_if={"method": "umap"},
)
def signature_embedding(
    prompt_counts: State,
    *,
    method: Method = "pca",
    weighting: Weighting = "auto",
    centred: bool = False,
    neighbours: Neighbours = 15,
    seed: Seed = 0,
) -> Values:
    """Two coordinates per prompt, from the signatures' directions in all layers side by side.

    Squared distance in that space is 2 L (1 - signature similarity), so the map and the similarity speak of the same
    thing. Prompts with the same signature are one point.

    Formula:
        z_p = (s_p1 / |s_p1|, ..., s_pL / |s_pL|); the two coordinates are the first principal components of all z_p
        s_pl: share of each expert of layer l in the selections of prompt p (centred: minus the mean over prompts).
        umap: neighbours by |z_p - z_q| in place of components.

    Returns:
        Prompt by coordinate, any number, without unit. NaN for a prompt without tokens.

    Raises:
        TooFew: If fewer than two prompts differ (five for UMAP).
        BadKnob: If `neighbours` is below 2 or `seed` not 0 to 2**32 - 1.

    Source:
        Avinash 2026, arXiv 2603.11114, for the signatures.

    Caveat:
        UMAP keeps neighbours only: distances between clusters, their sizes and gaps mean nothing. Read the
        trustworthiness, and PCA beside it. The seed decides the layout.
    """
    shares = signatures(prompt_counts, weighting)
    points = directions(shares, centred).transpose(0, 1).flatten(1)
    flat, facts = plane(points, method, neighbours, seed)
    prompts = prompt_counts.prompts
    axes = (Axis("prompt", prompts.ids, prompts.categories), Axis("coordinate", axis_labels(method)))
    caveats = said(prompt_counts, weighting, shares)
    if bool(points.isnan().any()) and not caveats:
        caveats = ("NaN: a prompt that equals the mean of all prompts has no centred signature.",)
    return Values(flat, axes, caveats, facts)
