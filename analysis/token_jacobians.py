"""Jacobians at single tokens, never formed: each is seen along a probe of its token, or between a few directions.

What is summed over tokens must be as random as the tokens are many, or else the noise of the probes stays however many
tokens there are. So a token's probe is one of thousands, by its hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from analysis.expert import Expert
from analysis.jacobians import probes
from analysis.precision import working_dtype

PROBES = 64
"""Fixed directions, and as many patterns of signs: `PROBES` squared probes, one of them for each common token."""

PAIRS = 1024
"""Pairs of experts for which chance is drawn, however many experts there are."""

MIXES = 32
"""Random output dimensions of each expert, of which a pair takes one each."""

OUTPUTS, INPUTS = 32, 16
"""Directions between which the size of a Jacobian is seen: the same ones for all tokens and for the mean."""

Slopes = tuple[Float[Tensor, "row hidden"] | None, Float[Tensor, "row hidden"]]
"""Slopes of phi by gate (None without one) and by up."""


@dataclass(frozen=True, eq=False)
class Seen:
    """One expert at some tokens: the slopes, what the probe is before the down projection, and J(x) v."""

    slopes: Slopes
    inner: Float[Tensor, "row hidden"]
    image: Float[Tensor, "row model"]


def token_probes(model: int, hashes: Int[Tensor, " token"]) -> Float[Tensor, "token model"]:
    """The direction v of each token, with E[v v'] = I: a fixed orthogonal one, its signs changed by a fixed pattern.

    Returns:
        Rows of length sqrt(model), float64, on the device of the hashes.

    Source:
        Hutchinson 1990; two tables in place of one of thousands of rows: ours.
    """
    first, signs = probes(model, PROBES).to(hashes.device), probes(model, PROBES, seed=1).sign().to(hashes.device)
    return first[hashes % PROBES] * signs[hashes // PROBES % PROBES]


def seen(expert: Expert, x: Float[Tensor, "row model"], v: Float[Tensor, "row model"]) -> Seen:
    """The slopes at each row of x, and J(x) v from the same slopes.

    Returns:
        In the expert's own precision.

    Source:
        Ours, from the closed form of the Jacobian.
    """
    gate, up = expert.slopes_each(x)
    inner = up * F.linear(v, expert.up)
    if gate is not None and expert.gate is not None:
        inner = inner + gate * F.linear(v, expert.gate)
    return Seen((gate, up), inner, F.linear(inner, expert.down))


def sketched_energy(
    weights: tuple[Float[Tensor, "hidden model"] | None, Float[Tensor, "hidden model"], Float[Tensor, "model hidden"]],
    slopes: Slopes,
) -> Float[Tensor, " row"]:
    """|J|^2 of the Jacobian that each row of slopes makes with these weights (gate, up, down).

    It is the mean of (s' J v)^2 over fixed directions s and v. As these are the same for every row, the energy of a
    mean is never above the mean energy. Exact where `model` is at most `INPUTS`.

    Returns:
        In squared units of the Jacobian, float64.

    Source:
        Hutchinson 1990, from both sides; orthogonal directions: ours.
    """
    gate, up, down = weights
    model, dtype = down.shape[0], working_dtype(up)
    s, v = (probes(model, min(n, model), seed).to(down.device, dtype) for n, seed in ((OUTPUTS, 2), (INPUTS, 3)))
    left, entries = s @ down.to(dtype), torch.zeros((), dtype=dtype, device=down.device)
    for weight, slope in ((gate, slopes[0]), (up, slopes[1])):
        if weight is not None and slope is not None:
            table = left[:, None] * (v @ weight.to(dtype).mT)
            entries = entries + F.linear(slope.to(dtype), table.flatten(0, 1))
    return entries.double().square().mean(-1)


def mixed(expert: Seen, rank: int) -> Float[Tensor, "row two mix"]:
    """What independent random output dimensions read of an expert at each token: of `inner`, and of J(x) v.

    The first is what J(x) v would be for a down projection of independent normal entries; the second, once its output
    directions are turned at random. Products of two experts' mixes are draws of chance, probes and slopes as they are.

    Args:
        expert: At some tokens.
        rank: Which numbers it draws: those of another expert are independent.

    Returns:
        In units of what is mixed; behind the mixes, its mean square, which is theirs on average.

    Source:
        Ours: E (g'C h)^2 = |C|^2 for independent standard normal g and h, C the cross moment of two experts' rows; and
        tr(Q C) has variance |C|^2 / d for a random rotation Q of d dimensions.
    """
    generator, found = torch.Generator().manual_seed(rank), []
    for rows in (expert.inner, expert.image):
        normal = torch.randn(MIXES, rows.shape[1], dtype=torch.float64, generator=generator) / rows.shape[1] ** 0.5
        found.append(torch.cat([F.linear(rows, normal.to(rows)), rows.square().mean(-1, keepdim=True)], -1))
    return torch.stack(found, 1).double()


def drawn_pairs(
    mixes: Float[Tensor, "row rank two mix"], beside: Float[Tensor, "row two mix"] | None = None
) -> Float[Tensor, "row two three pair"]:
    """Products of mixes of random pairs of experts, and the two mean squares.

    Args:
        mixes: Of the experts, in an order that does not depend on how they are numbered.
        beside: Of one that is in every pair; without it both are drawn, always different ones.

    Returns:
        Squared units of the mixes, token by token: to be summed over tokens.

    Source:
        Ours: the mean over pairs of a variance needs no table of all pairs.
    """
    experts, generator = mixes.shape[1], torch.Generator().manual_seed(0)
    draw = lambda low, high: torch.randint(low, high, (PAIRS,), generator=generator).to(mixes.device)  # noqa: E731
    first, own, other = draw(0, experts), draw(0, MIXES), draw(0, MIXES)
    second = (first + draw(1, max(experts, 2))) % experts
    right, right_size = mixes[:, second, :, other].permute(1, 2, 0), mixes[..., -1][:, second].mT
    if beside is None:
        left, left_size = mixes[:, first, :, own].permute(1, 2, 0), mixes[..., -1][:, first].mT
    else:
        left, left_size = beside[..., own], beside[..., -1:].expand_as(right)
    return torch.stack([left * right, left_size, right_size], 2)


def drawn_spread(pairs: Float[Tensor, "*case three pair"], model: int) -> Float[Tensor, "*case"]:
    """The variance by chance of the cosine of two experts in `model` dimensions, from sums of `drawn_pairs`.

    Returns:
        Squared cosine, the mean over pairs; NaN without tokens.

    Source:
        Ours: a sum over d output dimensions has d times the variance of one, and both squared norms are d times those
        of one, so the cosine's variance is a d-th of it.
    """
    products, first, second = pairs.unbind(-2)
    return (products.square() / (first * second)).nanmean(-1) / model
