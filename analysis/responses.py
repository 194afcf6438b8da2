"""How strongly experts answer to given directions: |W_j r| for each expert's matrix, without forming W'W."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.precision import working_dtype

DRAWS = 200
Matrix = Literal["gate", "up", "down"]
NO_SIZE = "NaN: a router row or an expert's matrix is all zero."


def squared_responses(
    rows: Float[Tensor, "row model"], matrices: Float[Tensor, "expert hidden model"]
) -> Float[Tensor, "row expert"]:
    """|W_j r_i|^2 for every row and expert, one expert at a time.

    Returns:
        In (weight units)^2, 0 or more.

    Source:
        Ours: two E m d products, no d x d matrix.
    """
    found = []
    for matrix in matrices:
        kind = working_dtype(matrix)
        found.append((rows.to(kind) @ matrix.to(kind).mT).double().square().sum(-1))
    return torch.stack(found, -1)


def squared_sizes(matrices: Float[Tensor, "expert hidden model"]) -> Float[Tensor, " expert"]:
    """|W_j|_F^2 of every expert.

    Returns:
        In (weight units)^2, 0 or more.

    Source:
        Ours: what responses are measured against.
    """
    # Row by row first: a float32 sum over millions would lose digits.
    return torch.stack([matrix.to(working_dtype(matrix)).square().sum(-1).double().sum() for matrix in matrices])


def toward_model(matrices: Float[Tensor, "expert ..."], which: Matrix) -> Float[Tensor, "expert hidden model"]:
    """One layer's matrices with the model's width last: `down` writes to the model, so it is read backwards.

    Returns:
        The same numbers, `down` transposed.

    Source:
        Ours.
    """
    return matrices.mT if which == "down" else matrices


def chance_responses(
    matrices: Float[Tensor, "expert hidden model"], draws: int, generator: torch.Generator
) -> Float[Tensor, "draw expert"]:
    """|W_j u|^2 for random directions u of length 1, the same for all experts.

    Returns:
        In (weight units)^2; on average |W_j|_F^2 / d.

    Source:
        Muller 1959, Comm. ACM 2 (uniform directions); the mean is the trace of W'W over d.
    """
    drawn = torch.randn(draws, matrices.shape[-1], dtype=torch.float64, generator=generator)
    return squared_responses(drawn / drawn.norm(dim=-1, keepdim=True), matrices)
