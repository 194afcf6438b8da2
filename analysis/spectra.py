"""One number for how many directions a cloud of rows fills."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Quantity = Literal["explained", "participation", "entropy_rank"]


def spread(variances: Float[Tensor, "... direction"], quantity: Quantity, n: int) -> Float[Tensor, "*case"]:
    """Summary of variances along principal axes.

    `explained`: the share of the first n; `participation`: (sum v)^2 / sum v^2; `entropy_rank`: exp of the entropy of
    v / sum v.

    Args:
        variances: Not negative, largest first.
        quantity: Which summary.
        n: For `explained`.

    Returns:
        A share from 0 to 1, or a number of directions from 1 to all; NaN where nothing varies.

    Source:
        Participation ratio: Bell & Dean 1970; entropy rank: Roy & Vetterli 2007.
    """
    shares = variances / variances.sum(-1, keepdim=True)
    if quantity == "explained":
        return shares[..., :n].sum(-1)
    if quantity == "participation":
        return 1 / shares.square().sum(-1)
    return torch.special.entr(shares).sum(-1).exp()
