"""How far a plane can be believed: whether neighbours in it are neighbours in truth."""

from __future__ import annotations

import math

from jaxtyping import Float
from sklearn.manifold import trustworthiness as sklearn_trustworthiness
from torch import Tensor


def trustworthiness(
    distances: Float[Tensor, "point point"], plane: Float[Tensor, "point coordinate"], neighbours: int
) -> float:
    """Penalty-weighted share of neighbours in the plane that are neighbours in truth.

    Args:
        distances: True distances.
        plane: Coordinates.
        neighbours: How many neighbours count; cut below half the points, where the number is defined.

    Returns:
        0 to 1, 1 is full trust; NaN with fewer than four points.

    Source:
        Venna & Kaski 2001 (scikit-learn's implementation).
    """
    allowed = min(neighbours, (len(plane) - 1) // 2)
    if allowed < 1 or len(plane) < 4:
        return math.nan
    return float(sklearn_trustworthiness(distances.numpy(), plane.numpy(), n_neighbors=allowed, metric="precomputed"))
