"""Chance, drawn or in closed form: what routing without preference and directions without meaning look like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.measure import Chance
from analysis.result import Reason
from analysis.statistic import State

NO_TOKEN = Reason("no token was routed")
DRAWS = 2000
_DRAWN_NUMBERS = 4_000_000
LEVEL = 0.05
"""How often chance alone may find anything, over all cases of a question together."""


def uniform_loads(
    tokens: Int[Tensor, "*case"], top_k: int, experts: int, generator: torch.Generator
) -> Float[Tensor, "*case expert"]:
    """How many tokens each expert gets when every token picks k distinct experts blindly.

    Exact, and its cost does not grow with the tokens: expert by expert, of the tokens that still need r of the n
    experts left, each takes this expert with probability r/n.

    Args:
        tokens: Tokens routed, one number per case.
        top_k: Distinct experts per token.
        experts: Experts to choose from.
        generator: Where the draws come from.

    Returns:
        Counts, 0 to `tokens`, summing to k times the tokens.

    Source:
        Ours: the chain rule for draws without replacement (selection sampling, Knuth vol. 2, 3.4.2), over counts.
    """
    needing = torch.zeros(*tokens.shape, top_k + 1, dtype=torch.float64)
    needing[..., top_k] = tokens.double()
    still = torch.arange(top_k + 1, dtype=torch.float64)
    loads = []
    for expert in range(experts):
        chance = (still / (experts - expert)).clamp(max=1).expand_as(needing).contiguous()
        taken = torch.binomial(needing, chance, generator=generator)
        loads.append(taken.sum(-1))
        needing = needing - taken
        needing[..., :-1] += taken[..., 1:]
    return torch.stack(loads, -1)


def blind_loads(
    prompt_counts: State, generator: torch.Generator, *, per_prompt: bool = False, draws: int = DRAWS
) -> tuple[Float[Tensor, "draw case expert"], str] | Reason:
    """The loads that blind routing of as many tokens gives: what a layer without preference shows.

    Args:
        prompt_counts: Says how many tokens there are, how many experts, and how many of them a token picks.
        generator: Where the draws come from.
        per_prompt: One case per prompt that has tokens, instead of one for all tokens together.
        draws: At most so many; fewer, but at least 100, where prompts and experts are many.

    Returns:
        Selections per draw, case and expert, and how they were made; a `Reason` if no token was routed.

    Source:
        Ours: exact draws of k distinct experts per token.
    """
    shape, tokens = prompt_counts.shape, prompt_counts["tokens"].sort().values
    tokens = tokens[tokens > 0] if per_prompt else tokens.sum()[None]
    total = int(tokens.sum())
    if not total:
        return NO_TOKEN
    draws = min(draws, max(100, _DRAWN_NUMBERS // (len(tokens) * shape.experts * shape.top_k)))
    loads = uniform_loads(tokens.expand(draws, -1), shape.top_k, shape.experts, generator)
    how = f"{draws:,} simulations of uniform routing of {total} independent tokens to {shape.top_k} distinct experts"
    return loads, how + (f" in {len(tokens)} prompts" if per_prompt else "")


def blind_chance(
    prompt_counts: State,
    generator: torch.Generator,
    made_of: Callable[[Float[Tensor, "draw case expert"]], Float[Tensor, "draw case"]],
    *,
    per_prompt: bool = False,
    one_sided: bool = False,
) -> Chance | Reason:
    """Where a number made of loads lies if routing is blind.

    Args:
        prompt_counts: As for `blind_loads`.
        generator: Where the draws come from.
        made_of: The number, of loads along the last axis.
        per_prompt: The mean over prompts of the number of each, instead of that of all tokens together.
        one_sided: A band from 0 to the 95 % point, for a number that only grows with imbalance.

    Returns:
        Mean and 95 % band in the unit of the number; a `Reason` if no token was routed.

    Source:
        Ours: exact draws of k distinct experts per token.
    """
    found = blind_loads(prompt_counts, generator, per_prompt=per_prompt)
    if isinstance(found, Reason):
        return found
    drawn, how = made_of(found[0]).mean(-1), found[1]
    if not one_sided:
        return Chance(drawn.mean(), *central_band(drawn), how)
    high = torch.quantile(drawn, 0.95, interpolation="higher")
    how += "; one-sided: 95 % of them lie at or below the upper bound, the lower bound is 0"
    return Chance(drawn.mean(), torch.zeros_like(high), high, how)


def random_directions(
    draws: int, experts: int, model: int, generator: torch.Generator
) -> Float[Tensor, "draw expert model"]:
    """Rows of unrelated routers: independent normal vectors, so every direction is equally likely.

    Returns:
        Rows without unit; only their directions mean anything.

    Source:
        Muller 1959, Comm. ACM 2: normalised Gaussian vectors are uniform on the sphere.
    """
    return torch.randn(draws, experts, model, dtype=torch.float64, generator=generator)


def random_rows(
    draws: int, rows: int, dimensions: int, generator: torch.Generator
) -> Float[Tensor, "draw row reduced"]:
    """Independent normal rows of many dimensions, turned so that few dimensions hold them all.

    Returns:
        Rows whose inner products are those of independent standard normal rows in `dimensions` dimensions, exactly.

    Source:
        Bartlett 1933: the triangular factor of a Gaussian matrix has chi on its diagonal and normals below.
    """
    reduced = min(rows, dimensions)
    lower = torch.randn(draws, rows, reduced, dtype=torch.float64, generator=generator).tril(-1)
    # torch draws no chi from a generator of ours.
    seed = int(torch.randint(2**62, (1,), generator=generator))
    chi = np.sqrt(np.random.default_rng(seed).chisquare(dimensions - np.arange(reduced), (draws, reduced)))
    lower[:, range(reduced), range(reduced)] = torch.from_numpy(chi)
    return lower


def central_band(draws: Float[Tensor, "draw ..."]) -> tuple[Float[Tensor, "*case"], Float[Tensor, "*case"]]:
    """The 2.5 % and 97.5 % points over the draws.

    Returns:
        Low and high, in the unit of the draws.

    Source:
        Ours: the central 95 % of what was drawn.
    """
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype), dim=0)
    return low, high


def above_the_largest(numbers: Float[Tensor, "draw case"]) -> Float[Tensor, " case"]:
    """How rarely chance lifts the largest of all cases to each of them, so that many cases give no false find.

    Args:
        numbers: The observed numbers first, then one row per draw of chance; NaN cases are left out.

    Returns:
        The p of each case, corrected for all of them: (1 + draws whose largest is at least as large) / (1 + draws);
        NaN for a case without a number.

    Source:
        Westfall & Young 1993: the maximum over cases holds the error of all of them together, however they depend.
    """
    observed = numbers[0].nan_to_num(nan=-torch.inf)
    if not len(observed):
        return observed.double()
    reached = numbers[1:].nan_to_num(nan=-torch.inf).amax(-1)[:, None] >= observed - 1e-12
    return ((1 + reached.sum(0).double()) / len(numbers)).masked_fill(numbers[0].isnan(), torch.nan)


def beyond(p: Float[Tensor, " case"]) -> tuple[int, float]:
    """How many cases chance does not explain, and how sure the surest is.

    Args:
        p: Corrected for all cases.

    Returns:
        Cases at or below 0.05, and the least p; NaN if no case has one.

    Source:
        Ours.
    """
    known = p[~p.isnan()]
    return int((known <= LEVEL).sum()), float(known.min()) if len(known) else float("nan")


def beyond_chance(observed: Float[Tensor, " case"], drawn: Float[Tensor, "draw case"]) -> Float[Tensor, " case"]:
    """How rarely chance lifts the largest of all cases to each of them, each in its own standard deviations.

    Args:
        observed: One number per case; NaN cases are left out.
        drawn: The same by chance. A case without spread is beyond where it is larger at all.

    Returns:
        The p of each case, corrected for all of them: at 0.05 a question is wrong in 5 % of worlds without a
        difference; NaN for a case without a number.

    Source:
        Westfall & Young 1993 (step one of their max-statistic); standardised, so that no case outshouts the others.
    """
    every = torch.cat([observed[None], drawn])
    mean, spread = drawn.mean(0), drawn.std(0)
    apart = every - mean
    # What rounding leaves between equal draws is no spread.
    scores = torch.where(spread > 1e-12, apart / spread, torch.where(apart.abs() > 1e-9, apart.sign() * torch.inf, 0.0))
    return above_the_largest(torch.where(observed.isnan(), torch.nan, scores))


def holm(p: Float[Tensor, " case"]) -> Float[Tensor, " case"]:
    """The p of each case corrected for all of them, where no draws say how cases depend on each other.

    Args:
        p: Of each case by itself; NaN cases are left out.

    Returns:
        0 to 1, in the same order; NaN for a case without a number.

    Source:
        Holm 1979: the smallest times the number of cases, the next times one less, and none below one before it.
    """
    known = (~p.isnan()).nonzero()[:, 0]
    order = known[p[known].argsort()]
    steps = torch.arange(len(order), 0, -1, dtype=p.dtype)
    found = torch.full_like(p, torch.nan)
    found[order] = (p[order] * steps).cummax(0).values.clamp(max=1)
    return found
