"""What two checkpoints do with their tokens, under one numbering, and how far apart the two distributions are."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analysis.errors import TooFew
from analysis.matching import ALONE, Partners
from analysis.measure import Inputs


def by_weight(a: Inputs, b: Inputs) -> tuple[str, ...]:
    """What `outcomes` compares where a side is fully soft.

    Returns:
        The sentence that says so, or none.

    Source:
        Ours.
    """
    soft = " and ".join(name for name, side in (("a", a), ("b", b)) if side.shape.soft)
    said = f"By combine weight on both sides: {soft} uses every expert for every token and selects none."
    return (said,) if soft else ()


def outcomes(
    a: Inputs, b: Inputs, pairs: Partners, count: Literal["selected", "served"] = "selected"
) -> tuple[Float[Tensor, "prompt layer outcome"], Float[Tensor, "prompt layer outcome"]]:
    """Selections by prompt, or combine weights if a side is fully soft: of each expert of a and, for b, its partner.

    Args:
        a: What one checkpoint brings, `prompt_counts` among it.
        b: The other.
        pairs: The partner in b of each expert of a.
        count: What is counted on a side that selects.

    Returns:
        One outcome for each expert of a that has a partner (0 on both sides for the others), and two more: experts
        without partner of a, and of b.

    Raises:
        TooFew: If weights have to be compared and a side, an imported trace, carries none.

    Source:
        Ours: work that has no counterpart is an outcome of its own on each side.
    """
    array = "weights" if a.shape.soft or b.shape.soft else count
    first, second = (side.prompt_counts[array].double() for side in (a, b))
    if any(bool(side.isnan().any()) for side in (first, second)):
        raise TooFew(
            "one side is fully soft and is counted by combine weight, which the other side's routes do not carry"
        )
    there = pairs != ALONE
    taken = second.gather(-1, pairs.clamp(min=0).expand(len(second), -1, -1)) * there
    own, nothing = first * there, torch.zeros_like(first[..., :1])
    return (
        torch.cat([own, (first - own).sum(-1, keepdim=True), nothing], -1),
        torch.cat([taken, nothing, second.sum(-1, keepdim=True) - taken.sum(-1, keepdim=True)], -1),
    )


def fisher_rao(first: Float[Tensor, "*case outcome"], second: Float[Tensor, "*case outcome"]) -> Float[Tensor, "*case"]:
    """The shortest way between two distributions where lengths are measured by Fisher's information.

    By the chord between the roots of the shares, which for near distributions keeps the digits that arccos loses.

    Args:
        first: Counts or weights, 0 or more.
        second: The same.

    Returns:
        Radians, 0 to pi; NaN where a side has nothing.

    Source:
        Rao 1945: twice the angle between the vectors of square roots.
    """
    roots = [(side.clamp(min=0) / side.sum(-1, keepdim=True)).sqrt() for side in (first, second)]
    return 4 * ((roots[0] - roots[1]).norm(dim=-1) / 2).clamp(max=1).arcsin()


def token_outcomes(
    a: Inputs, b: Inputs, pairs: Partners, prompt: int
) -> tuple[Float[Tensor, "token layer outcome"], Float[Tensor, "token layer outcome"]]:
    """The outcomes of every token of one prompt: what `outcomes` sums over.

    Args:
        a: What one checkpoint brings, `token_routes` among it.
        b: The other, of the same tokens.
        pairs: The partner in b of each expert of a.
        prompt: Its place among the prompts.

    Returns:
        1 for each selection, or combine weights if a side is fully soft; identity experts are no outcome.

    Source:
        Ours.
    """
    weighted, experts = a.shape.soft or b.shape.soft, pairs.shape[1]
    one, other = (
        _placed(side, names, weighted, side.token_routes["prompt"] == prompt)
        for side, names in zip((a, b), _names(a, b, pairs), strict=True)
    )
    empty = [torch.zeros(*place.shape[:2], experts + 3, dtype=torch.float64) for place, _ in (one, other)]
    return empty[0].scatter_add_(-1, *one)[..., :-1], empty[1].scatter_add_(-1, *other)[..., :-1]


def prompt_outcomes(
    a: Inputs, b: Inputs, pairs: Partners
) -> tuple[Float[Tensor, "prompt layer outcome"], Float[Tensor, "prompt layer outcome"]]:
    """The outcomes of all tokens of each prompt together: what `token_outcomes` gives, summed.

    Returns:
        Selections, or combine weights if a side is fully soft; identity experts are no outcome.

    Source:
        Ours: without a table of outcomes for each token.
    """
    weighted = a.shape.soft or b.shape.soft
    size = (len(a.token_routes.prompts), len(pairs), pairs.shape[1] + 3)
    found = []
    for side, names in zip((a, b), _names(a, b, pairs), strict=True):
        place, given = _placed(side, names, weighted, slice(None))
        cell = side.token_routes["prompt"][:, None, None] * size[1] + torch.arange(size[1])[:, None]
        total = torch.bincount((cell * size[2] + place).flatten(), given.flatten(), minlength=math.prod(size))
        found.append(total.double().view(size)[..., :-1])
    return found[0], found[1]


def _names(a: Inputs, b: Inputs, pairs: Partners) -> tuple[Int[Tensor, "layer name"], Int[Tensor, "layer name_b"]]:
    """The outcome that each expert of a side is; a column more for identity experts, whose outcome is cut off."""
    experts = pairs.shape[1]
    own = torch.where(pairs != ALONE, torch.arange(experts), experts)
    theirs = torch.full((len(pairs), b.shape.experts), experts + 1, dtype=torch.int64)
    for layer, partner in enumerate(pairs):
        theirs[layer, partner[partner != ALONE]] = (partner != ALONE).nonzero()[:, 0]
    nobody = torch.full((len(pairs), 1), experts + 2, dtype=torch.int64)
    return torch.cat([own, nobody], -1), torch.cat([theirs, nobody], -1)


def _placed(
    side: Inputs, names: Int[Tensor, "layer name"], weighted: bool, rows: Bool[Tensor, " token"] | slice
) -> tuple[Int[Tensor, "chosen layer k"], Float[Tensor, "chosen layer k"]]:
    """The outcome of each selection of these tokens, and what it counts; that of identity experts is the last."""
    indices = side.token_routes["indices"][rows].long()
    given = side.token_routes["weights"][rows].double() if weighted else torch.ones(indices.shape, dtype=torch.float64)
    return names[torch.arange(len(names))[:, None], indices.clamp(max=names.shape[1] - 1)], given
