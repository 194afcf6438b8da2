"""From a value and its values without one block each to bounds, on the scale on which its error is even."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

Scale = Literal["as it is", "share", "squared correlation", "distance"]
"""What a value is, where that says how its error grows with it: a share of tokens, the square of a correlation, or the
root of what adds up, whose error has no slope at 0."""

LEVEL = 0.95

FEWEST_BLOCKS = 4
"""Blocks of prompts below which leaving one out says too little of the spread."""

SAID = {
    "as it is": "",
    "share": ", score bounds of a share",
    "squared correlation": ", on the scale of Fisher's z of its root",
    "distance": ", on the scale of its square",
}
"""What an interval's method says of its scale."""


def spread(parts: Float[Tensor, "block ..."]) -> Float[Tensor, "*case"]:
    """The jackknife's standard error.

    Args:
        parts: The value without each block.

    Returns:
        0 or more, in the unit of the value; NaN where one of them is.

    Source:
        Efron & Stein 1981.
    """
    count = len(parts)
    return ((count - 1) / count * ((parts - parts.mean(0)) ** 2).sum(0)).sqrt()


def quantile(blocks: int) -> float:
    """How many standard errors the interval reaches to either side: Student t on one degree of freedom less.

    Returns:
        Above 1.96, and falling to it with the blocks.

    Source:
        Student t for few blocks: Hinkley 1977.
    """
    return float(student.ppf(0.5 + LEVEL / 2, blocks - 1))


def fisher_root(value: Float[Tensor, "*case"]) -> Float[Tensor, "*case"]:
    """Fisher's z of the root of a squared correlation, with the sign of the square, since an unbiased one can have it.

    Returns:
        Any number; NaN beyond what rounding puts above 1.

    Source:
        Fisher 1921: the error of z hardly depends on the correlation.
    """
    edge = 1 - torch.finfo(value.dtype).eps
    size = torch.where(value.abs() > 1 + 1e-9, torch.nan, value.abs().clamp(max=edge))
    return value.sign() * size.sqrt().atanh()


def squared(z: Float[Tensor, "*case"]) -> Float[Tensor, "*case"]:
    """Back from `fisher_root`.

    Returns:
        -1 to 1.

    Source:
        Fisher 1921.
    """
    return z.sign() * z.tanh().square()


def rooted(square: Float[Tensor, "*case"]) -> Float[Tensor, "*case"]:
    """Back from the square of a distance, of which no bound is below 0.

    Returns:
        0 or more, in the unit of the distance.

    Source:
        Ours.
    """
    return square.clamp(min=0).sqrt()


EVEN = {"squared correlation": (fisher_root, squared), "distance": (torch.square, rooted)}
"""To the scale on which the error is even, and back."""


def score_bounds(
    share: Float[Tensor, "*case"], error: Float[Tensor, "*case"], trials: Float[Tensor, "*case"], reach: float
) -> tuple[Float[Tensor, "*case"], Float[Tensor, "*case"]]:
    """All shares p that are within `reach` standard errors of the one seen, the error being that which p would have.

    The variance of a share goes with p (1 - p); how much larger it is than that of independent tokens, the jackknife
    says: share (1 - share) / error^2 is the number of independent tokens that would have its error.

    Args:
        share: What was seen, 0 to 1.
        error: Its standard error.
        trials: How many tokens each share is of, which count where none, or all, of them said yes: then no block
            differs from another. Infinite where the share is what it is by definition.
        reach: Standard errors to either side.

    Returns:
        Low and high, 0 to 1; of a share of 0, 0 and reach^2 / (trials + reach^2).

    Source:
        Wilson 1927; with an effective number of trials for clustered ones: Kott & Carr 1997, J. Off. Stat. 13.
    """
    one_sided = (share <= 0) | (share >= 1)
    tokens = torch.where(one_sided, trials, share * (1 - share) / error.square())
    wide = reach**2 / tokens
    middle = (share + wide / 2) / (1 + wide)
    half = (wide * share * (1 - share) + wide**2 / 4).sqrt() / (1 + wide)
    # An error that is not known makes no bound of a share of 0 or 1 either.
    half = torch.where(error.isnan(), torch.nan, half)
    return (middle - half).clamp(min=0), (middle + half).clamp(max=1)


def jackknife(
    statistic: Callable[[int | None], Tensor],
    blocks: tuple[int, ...],
    *,
    plug_in: bool = False,
    scale: Scale = "as it is",
    trials: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Delete-one-block jackknife with Student t on B - 1 degrees of freedom.

    Args:
        statistic: The value without this block; `None` asks for the value of everything.
        blocks: The blocks that hold data.
        plug_in: Centre on the bias-corrected value (entropies and other plug-in estimates).
        scale: The scale on which the error does not depend on the value.
        trials: How many tokens each share is of; without them a share of 0 or 1 has no bounds.

    Returns:
        Centre, low and high bound, in the statistic's unit.

    Source:
        Efron & Stein 1981; Student t for few blocks: Hinkley 1977. Even scales: `EVEN`, `score_bounds`.
    """
    full = statistic(None)
    parts = torch.stack([statistic(block) for block in blocks])
    count, reach = len(blocks), quantile(len(blocks))
    if scale == "share":
        of = torch.full_like(full, torch.nan) if trials is None else trials
        return full, *score_bounds(full, spread(parts), of, reach)
    if scale in EVEN:
        there, back = EVEN[scale]
        half = reach * spread(there(parts))
        return full, back(there(full) - half), back(there(full) + half)
    centre = count * full - (count - 1) * parts.mean(0) if plug_in else full
    half = reach * spread(parts)
    return centre, centre - half, centre + half
