"""How far apart two checkpoints deal out the same prompts to their experts."""

from __future__ import annotations

import torch

from analysis.loads import NO_TOKENS, over_layers
from analysis.matching import ALONE, Matching, partners, told, why_alone
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import beyond, beyond_chance, central_band
from analysis.outcomes import by_weight, fisher_rao, outcomes

DRAWS, _DRAWN_NUMBERS = 999, 100_000_000


@measure(
    title="Routing distance",
    question="How far is the distribution of work over experts in b from that in a?",
    unit="Fisher-Rao distance (radians, 0 to pi; 0 is the same distribution)",
    family="compare",
    source="Fisher-Rao distance of distributions: Rao 1945; of routers after matching: ours",
    axes=("layer",),
    reads=("prompt_counts", "token_routes"),
)
def routing_distance(a: Inputs, b: Inputs, *, matching: Matching = "co-selection") -> Values:
    """Arc length between the two distributions of selections over experts, over the prompts both have.

    An expert of b counts as its partner in a; what experts without partner do is shared by nobody. If a side is fully
    soft, both are compared by combine weight.

    Formula:
        D = 2 arccos(sum_e sqrt(p_e q_m(e)))
        p_e: share of the selections in a that expert e has; q_f: the same in b; m(e): partner in b of expert e.

    Returns:
        One number per layer, 0 to pi; pi where no work is shared. NaN where no expert of the layer has a partner, or
        nothing was routed.

    Raises:
        NotComparable: If layers or (`identity`) numbers of experts differ, or no tokens end together.

    Source:
        Rao 1945, Bull. Calcutta Math. Soc. 37.

    Caveat:
        Few tokens put any two distributions apart: read it against the band. One of eight equally busy experts without
        partner alone makes 1.01, and pairs are sought anew without each block of prompts, so an interval far wider than
        the band means a pair that comes and goes. Two routers with the same loads are at 0 however differently they
        treat a single token; routing agreement looks at those.
    """
    pairs = partners(a, b, matching)
    first, second = (side.sum(0) for side in outcomes(a, b, pairs))
    alone = (pairs == ALONE).all(-1)
    values = fisher_rao(first, second).masked_fill(alone, torch.nan)
    facts = told(pairs, matching) | over_layers(values, a.shape.layers, "highest")
    caveats = why_alone(alone, "layers in which no expert of a has a partner in b") + by_weight(a, b)
    if bool((values.isnan() & ~alone).any()):
        caveats += (NO_TOKENS,)
    return Values(values, facts=facts, caveats=caveats)


@routing_distance.chance
def null(a: Inputs, b: Inputs, *, matching: Matching, generator: torch.Generator) -> Chance:
    """Each prompt's two routings exchanged or not by the toss of a coin, experts paired as they are.

    Returns:
        Mean and central 95 % band per layer. Facts: layers that differ beyond the largest of all by chance, and its p.

    Source:
        Fisher 1935, paired exchange. Max-statistic over layers, each in standard deviations: Westfall & Young 1993.
    """
    pairs = partners(a, b, matching)
    first, second = outcomes(a, b, pairs)
    draws = min(DRAWS, max(199, _DRAWN_NUMBERS // max(first[0].numel(), 1)))
    swap = torch.randint(0, 2, (draws, len(first)), generator=generator).double()
    moved = (swap @ (second - first).flatten(1)).unflatten(-1, first.shape[1:])
    alone = (pairs == ALONE).all(-1)
    drawn = fisher_rao(first.sum(0) + moved, second.sum(0) - moved).masked_fill(alone, torch.nan)
    observed = fisher_rao(first.sum(0), second.sum(0)).masked_fill(alone, torch.nan)
    by_layer = beyond_chance(observed, drawn)
    found, p = beyond(by_layer)
    facts = {"layers that differ beyond chance (max-statistic)": f"{found} of {len(by_layer)}"}
    how = f"{draws} random exchanges of the two sides within each of {len(first)} prompts"
    return Chance(drawn.mean(0), *central_band(drawn), how, facts | {"sign-flip p": p}, by_layer)
