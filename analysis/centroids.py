"""Where the tokens of each expert lie: the centroids that several measures share."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from analysis.errors import TooFew
from analysis.statistic import State

Centroid = Literal["plain", "weighted", "centred"]


def centroids(centroid_sums: State, centroid: Centroid) -> Float[Tensor, "layer expert model"]:
    """The centroid of each expert's served tokens.

    Returns:
        In units of the hidden state; NaN for an expert without tokens.

    Raises:
        TooFew: If weighted ones are asked for and the sums come without weights, as those of an imported trace do.

    Source:
        Ahrac, Hochwald & Geva 2026, arXiv 2605.12476 (plain); the others: ours.
    """
    names = ("weighted_input", "weight") if centroid == "weighted" else ("input", "served")
    total, count = (centroid_sums[name].sum(0) for name in names)
    if bool(count.isnan().any()):
        raise TooFew("these sums carry no combine weights; ask for plain or centred centroids")
    found = total / count[..., None]
    if centroid != "centred":
        return found
    return found - centroid_sums["seen_input"].sum(0)[:, None] / centroid_sums["seen"].sum(0)[:, None, None]
