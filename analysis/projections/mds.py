"""Classical scaling: the flat map whose distances come nearest to the given ones."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def classical_scaling(
    distances: Float[Tensor, "point point"], coordinates: int = 2
) -> tuple[Float[Tensor, "point coordinate"], Float[Tensor, " coordinate"]]:
    """Coordinates from distances alone, by the leading eigenvectors of the doubly centred squares.

    Axes are turned so that their third moment is positive, which does not depend on the order of the points.

    Args:
        distances: Symmetric, 0 on the diagonal.
        coordinates: How many.

    Returns:
        Coordinates, in the unit of the distances, 0 where they leave no direction; and each one's share of the positive
        eigenvalues (NaN if all points are the same).

    Source:
        Torgerson 1952, Psychometrika 17.
    """
    squares = distances.square()
    centred = squares - squares.mean(0) - squares.mean(1, keepdim=True) + squares.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    kept = min(coordinates, len(values))
    scores = torch.zeros(len(distances), coordinates, dtype=distances.dtype)
    scores[:, :kept] = vectors[:, :kept] * values[:kept].sqrt()
    share = torch.zeros(coordinates, dtype=distances.dtype)
    share[:kept] = values[:kept]
    sign = torch.where((scores**3).sum(0) < 0, -1.0, 1.0).to(distances.dtype)
    return scores * sign, share / values.sum()
