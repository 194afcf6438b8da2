"""Principal components: the flat shadow with the most variance."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def principal_components(
    points: Float[Tensor, "point feature"], coordinates: int = 2
) -> tuple[Float[Tensor, "point coordinate"], Float[Tensor, " coordinate"]]:
    """Coordinates of the points along the directions of largest variance.

    Axes have no sign of their own: each is turned so that its third moment is positive, which depends on the points
    alone and not on the order of points or features.

    Returns:
        Coordinates, in the unit of the points, zero-padded where the points span fewer directions; and each one's
        share of the variance (0 to 1; NaN if all points are the same).

    Source:
        Pearson 1901; by singular values (Eckart & Young 1936).
    """
    centred = points - points.mean(0)
    left, singular, _ = torch.linalg.svd(centred, full_matrices=False)
    kept = min(coordinates, len(singular))
    scores = torch.zeros(len(points), coordinates, dtype=points.dtype)
    scores[:, :kept] = left[:, :kept] * singular[:kept]
    share = torch.zeros(coordinates, dtype=points.dtype)
    share[:kept] = singular[:kept] ** 2
    sign = torch.where((scores**3).sum(0) < 0, -1.0, 1.0).to(points.dtype)
    return scores * sign, share / (singular**2).sum()
