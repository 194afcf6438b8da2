"""Chance, drawn or in closed form: what routing without preference and directions without meaning look like."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


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


def central_band(draws: Float[Tensor, "draw ..."]) -> tuple[Float[Tensor, "*case"], Float[Tensor, "*case"]]:
    """The 2.5 % and 97.5 % points over the draws.

    Returns:
        Low and high, in the unit of the draws.

    Source:
        Ours: the central 95 % of what was drawn.
    """
    low, high = torch.quantile(draws, torch.tensor([0.025, 0.975], dtype=draws.dtype), dim=0)
    return low, high
