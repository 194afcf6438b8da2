"""Cosines between rows, raw and centred, and what all rows share."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Form = Literal["raw", "centred"]


def unit_rows(rows: Float[Tensor, "... row model"]) -> Float[Tensor, "... row model"]:
    """Rows of length 1.

    Returns:
        Directions; NaN for a row of length 0, which has none.

    Source:
        Ours: never an epsilon, which would turn "no direction" into a number.
    """
    return rows / rows.norm(dim=-1, keepdim=True)


def centred_rows(rows: Float[Tensor, "... row model"]) -> Float[Tensor, "... row model"]:
    """Rows minus their mean row: what is left when nothing is shared.

    Returns:
        In the unit of the rows; they sum to 0. Rows alike to their last digits become exactly 0.

    Source:
        Ours: a softmax router ignores whatever all its rows share.
    """
    left = rows - rows.mean(-2, keepdim=True)
    # What rounding leaves of equal rows has no direction worth a cosine.
    floor = 16 * torch.finfo(rows.dtype).eps * rows.norm(dim=-1, keepdim=True)
    return torch.where(left.norm(dim=-1, keepdim=True) <= floor, torch.zeros_like(left), left)


def row_cosines(rows: Float[Tensor, "... row model"], form: Form) -> Float[Tensor, "... row row"]:
    """Cosines of all pairs of rows.

    Returns:
        -1 to 1, symmetric; NaN where a row has length 0.

    Source:
        Ahrac et al. 2026, arXiv 2605.12476 (raw); centred: ours, blind to the softmax gauge.
    """
    unit = unit_rows(centred_rows(rows) if form == "centred" else rows)
    return (unit @ unit.mT).clamp(-1, 1)


def common_mode(rows: Float[Tensor, "... row model"]) -> Float[Tensor, "*case"]:
    """The share of the rows' energy that lies in their mean row.

    Returns:
        0 (rows cancel) to 1 (all rows are the same); 1/E on average for unrelated rows of equal length.

    Source:
        Ours: E |mean row|^2 / sum |row|^2.
    """
    return rows.shape[-2] * rows.mean(-2).square().sum(-1) / rows.square().sum((-1, -2))


def off_diagonal(pairs: Float[Tensor, "... row row"]) -> Float[Tensor, "... pair"]:
    """Each pair of different rows once.

    Returns:
        The entries above the diagonal, in the unit of the matrix.

    Source:
        Ours: a row's likeness to itself says nothing.
    """
    first, second = torch.triu_indices(pairs.shape[-1], pairs.shape[-1], 1)
    return pairs[..., first, second]
