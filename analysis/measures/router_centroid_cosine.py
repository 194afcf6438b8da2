"""Whether a router row points at the tokens its expert gets."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from scipy.stats import beta
from torch import Tensor

from analysis.centroids import Centroid, centroids
from analysis.cosines import Form, centred_rows, unit_rows
from analysis.measure import Chance, Values, measure
from analysis.slopes import without_tokens
from analysis.statistic import State


@measure(
    title="Router rows and centroids",
    question="Does a router row point at the mean of the tokens its expert gets?",
    unit="cosine (-1 to 1)",
    family="coupling",
    source="Thesis: Ahrac, Hochwald & Geva 2026, arXiv 2605.12476; as a matrix of all pairs: ours",
    axes=("layer", "expert", "expert_b"),
)
def router_centroid_cosine(
    centroid_sums: State,
    router_weight: Float[Tensor, "layer expert model"],
    *,
    centroid: Centroid = "plain",
    rows: Form = "raw",
) -> Values:
    """Cosine between router row i (first expert axis) and the centroid of expert j's served tokens (second).

    `plain`: mean of x over the tokens served; `weighted`: by combine weight; `centred`: plain minus the mean of all
    tokens of the layer. `rows="centred"` takes the layer's mean row from each row.

    Formula:
        C_ij = r_i . c_j / (|r_i| |c_j|);  c_j = mean of x over the tokens that expert j served
        r_i: router row i (rows = centred: minus the layer's mean row); x: router input. centroid = weighted: mean by
        combine weight; centred: c_j minus the mean of x over all tokens of the layer.

    Returns:
        Layer by expert by expert, -1 to 1, not symmetric. NaN for an expert without tokens or a row of length 0.

    Raises:
        Nothing of its own.

    Source:
        Ahrac, Hochwald & Geva 2026, arXiv 2605.12476.

    Caveat:
        All tokens share a large mean, so plain centroids are alike and so is a whole row of this figure: compare the
        diagonal with the rest of its row, or take `centred`. A token is served because of its score, so some excess on
        the diagonal is selection alone.
    """
    router = router_weight.double()
    router = centred_rows(router) if rows == "centred" else router
    cosines = (unit_rows(router) @ unit_rows(centroids(centroid_sums, centroid)).mT).clamp(-1, 1)
    own = cosines.diagonal(dim1=-2, dim2=-1)
    other = cosines[~torch.eye(cosines.shape[-1], dtype=torch.bool).expand_as(cosines)]
    known = ~cosines.isnan().all(-2)
    best = cosines.nan_to_num(-math.inf).argmax(-1) == torch.arange(cosines.shape[-1])
    facts = {
        "mean matched": float(own.nanmean()),
        "mean mismatched": float(other.nanmean()),
        "rows nearest to their own centroid": float(best[known].double().mean()) if bool(known.any()) else math.nan,
        "pairs": int((~cosines.isnan()).sum()),
    }
    served = centroid_sums["served"].sum(0)
    still = "NaN: a router row of length 0, or a centroid without a direction."
    return Values(cosines, facts=facts, caveats=without_tokens(served) or ((still,) if cosines.isnan().any() else ()))


@router_centroid_cosine.chance
def null(
    centroid_sums: State,
    router_weight: Float[Tensor, "layer expert model"],
    *,
    centroid: Centroid,
    rows: Form,
    generator: torch.Generator,
) -> Chance:
    """A router row that points anywhere.

    Returns:
        Cosines: 0 and the central 95 % band, the same for all pairs.

    Source:
        The squared cosine of a uniform direction with any fixed one is Beta(1/2, (d - 1)/2).
    """
    model = centroid_sums.shape.model
    edge = torch.tensor(math.sqrt(beta.ppf(0.95, 0.5, (model - 1) / 2)), dtype=torch.float64)
    return Chance(torch.zeros_like(edge), -edge, edge, f"one random direction and a fixed one in {model} dimensions")
