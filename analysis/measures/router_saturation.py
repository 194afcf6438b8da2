"""How early in training the router has settled on the experts it ends with."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.errors import NotComparable, TooFew
from analysis.loads import over_layers
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import beyond, beyond_chance
from analysis.ranks import by_rank
from analysis.result import Reason
from analysis.statistic import State
from analysis.unrelated import beside_another_prompt

DRAWS, FEWEST, _DRAWN_NUMBERS = 199, 99, 50_000_000


@measure(
    title="Router saturation",
    question="How early do tokens reach the experts they end with?",
    unit="share of the final step's experts (0 to 1; k/E is chance)",
    family="trajectories",
    source="Muennighoff et al. 2024, arXiv 2409.02060",
    axes=("step", "layer"),
    reads=("token_routes",),
    needs_selection=True,
)
def router_saturation(steps: tuple[Inputs, ...], *, top1: bool = False) -> Values:
    """Mean share of a token's experts that it also has at the last step: |S(t) and S(final)| / k.

    The last of the steps is the final one. `top1` asks whether the first-ranked expert is the same.

    Formula:
        S(s) = (1/T) sum_t |C_t(s) and C_t(final)| / k
        C_t(s): the k experts of token t at step s; T tokens, the same at every step. top1: the
        first-ranked expert alone, and 1 for k.

    Returns:
        Step by layer, 0 to 1; 1 at the last step. NaN where nothing was routed.

    Raises:
        TooFew: If there are not two steps.
        NotComparable: If layers, experts, experts per token or the tokens themselves differ between steps.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060.

    Caveat:
        High saturation says that choices stopped changing, not that they are good ones: a router that was never trained
        is saturated from its first step. A busy expert is shared by accident, above the chance of even loads; the p
        keeps loads, and asks whether a step shares more with the last than where prompts stand beside other prompts.
    """
    chosen = _choices(steps, top1)
    values = _shared(chosen, chosen[-1])
    layers = steps[-1].shape.layers
    facts: dict[str, int | float | str] = {"final step": steps[-1].label or str(len(steps) - 1)}
    facts |= {f"first step: {name}": told for name, told in over_layers(values[0], layers, "lowest").items()}
    return Values(values, facts=facts, caveats=("NaN: no token was routed.",) if not len(chosen[-1]) else ())


@router_saturation.chance
def null(steps: tuple[Inputs, ...], *, top1: bool, generator: torch.Generator) -> Chance | Reason:
    """Two blind choices of k experts by each token.

    Returns:
        Mean k/E (1/E for the first-ranked) and 95 % band for every step but the last, which shares all with itself.
        Facts: cells (step and layer) above the largest of all where each prompt stands beside another one of the last
        step, and the p of that; the p of each cell, corrected for all, none for the last step.

    Source:
        Ours: the number of shared experts is hypergeometric per token; the mean over independent tokens is normal.
        Prompts exchanged whole: ours. Max-statistic, each cell in standard deviations: Westfall & Young 1993.
    """
    shape, tokens = steps[-1].shape, len(steps[-1].token_routes["position"])
    if not tokens:
        return Reason("no token was routed")
    e, k = shape.experts, 1 if top1 else shape.top_k
    half = 1.96 * math.sqrt((e - k) ** 2 / (e**2 * (e - 1)) / tokens)
    mean = torch.full((len(steps), 1), k / e, dtype=torch.float64)
    half = torch.full_like(mean, half)
    mean[-1], half[-1] = 1, 0
    how = f"two independent blind choices of {k} of {e} experts by each of {tokens:,} tokens, normal"
    facts, p = _settled(steps, top1, generator)
    return Chance(mean, mean - half, mean + half, how, facts, p)


def _settled(
    steps: tuple[Inputs, ...], top1: bool, generator: torch.Generator
) -> tuple[dict[str, int | float | str], Float[Tensor, "step layer"]]:
    """Whether a step shares more with the last than its tokens share with those of other prompts."""
    tokens, *rest = steps[-1].token_routes["indices"].shape
    draws = min(DRAWS, max(FEWEST, _DRAWN_NUMBERS // (tokens * len(steps) * math.prod(rest))))
    orders = [beside_another_prompt(steps[-1].token_routes["prompt"], generator) for _ in range(draws)]
    *chosen, final = _choices(steps, top1)
    drawn = torch.stack([_shared(chosen, final[order]) for order in orders])
    by_cell = beyond_chance(_shared(chosen, final).flatten(), drawn.flatten(1))
    found, p = beyond(by_cell)
    facts: dict[str, int | float | str] = {
        "cells more settled than chance (max-statistic)": f"{found} of {len(by_cell)}",
        "permutation p": p,
    }
    last = torch.full((1, len(steps[-1].shape.layers)), math.nan, dtype=torch.float64)
    return facts, torch.cat([by_cell.view(-1, last.shape[1]), last])


def _choices(steps: tuple[Inputs, ...], top1: bool) -> list[Int[Tensor, "token layer k"]]:
    """The experts of each token at each step, once the steps are known to be of the same tokens and shape."""
    if len(steps) < 2:
        raise TooFew(f"{len(steps)} step: saturation compares each with the last, so it needs two")
    final = steps[-1]
    for step in steps:
        same = step.shape.layers == final.shape.layers and step.shape.experts == final.shape.experts
        if not same or step.shape.top_k != final.shape.top_k:
            raise NotComparable(
                f"step {step.label or '?'} has another shape than the last: {step.shape}, {final.shape}"
            )
        if not all(torch.equal(step.token_routes[n], final.token_routes[n]) for n in ("prompt", "position", "token")):
            raise NotComparable(f"step {step.label or '?'} cut the prompts into other tokens than the last")
    return [_chosen(step.token_routes, top1) for step in steps]


def _shared(
    chosen: list[Int[Tensor, "token layer k"]], final: Int[Tensor, "token layer k"]
) -> Float[Tensor, "step layer"]:
    """Mean over tokens of the share of each step's experts that are among the final ones."""
    # A table of who is in the final set is read k times, where comparing all pairs would cost k squared.
    width = max((int(one.max()) + 1 for one in (*chosen, final) if one.numel()), default=1)
    member = torch.zeros(*final.shape[:2], width, dtype=torch.bool).scatter_(-1, final, True)
    return torch.stack([member.gather(-1, one).double().mean(-1).mean(0) for one in chosen])


def _chosen(routes: State, top1: bool) -> Int[Tensor, "token layer k"]:
    indices = routes["indices"].long()
    return by_rank(indices, routes["weights"].float())[..., :1] if top1 else indices
