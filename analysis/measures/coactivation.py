"""Which experts are chosen together."""

from __future__ import annotations

from typing import Literal

import torch
from scipy.stats import binom

from analysis.cosines import off_diagonal
from analysis.measure import Chance, Values, measure
from analysis.statistic import State

Pairs = Literal["all", "adjacent_rank"]


@measure(
    title="Co-activation",
    question="When a token uses one expert, which others does it use?",
    unit="share of the expert's tokens (0 to 1)",
    family="specialisation",
    source="Muennighoff et al. 2024, arXiv 2409.02060 (N_ij / N_i over all pairs; its script: neighbours in rank)",
    axes=("layer", "expert", "expert_b"),
    needs_selection=True,
    scale="share",
)
def coactivation(coactivation_counts: State, *, pairs: Pairs = "all") -> Values:
    """Of the tokens that selected expert i, the share that selected j too: N_ij / N_i, not symmetric.

    `adjacent_rank` counts j only where it ranks just before or just after i, as the script behind the published
    figures does: its numbers are smaller.

    Formula:
        C_ij = N_ij / N_i;  C_ii = 1
        N_i: tokens that selected expert i; N_ij: tokens that selected both i and j. adjacent_rank: N_ij counts them
        only where i and j are neighbours in the token's order of combine weights.

    Returns:
        Layer by expert by expert, 0 to 1; the diagonal is 1. NaN in the row of an expert without tokens.

    Raises:
        Nothing of its own.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060.

    Caveat:
        A popular expert is chosen with everyone: a bright column is load, not affinity. With k = 1 nothing is chosen
        together and all off the diagonal is 0. The error of a share grows with it, so the interval of a rare pair is
        lopsided: in 1,000 simulations (6 experts, 80 prompts) intervals held the value of endless prompts 95 % of the
        time, and 96 % for pairs of which fewer than 5 tokens were to be expected. That of a pair never seen takes its
        tokens to be independent.
    """
    both = coactivation_counts["both"].sum(0).double()
    alone = both.diagonal(dim1=-2, dim2=-1)
    if pairs == "adjacent_rank":
        both = coactivation_counts["adjacent"].sum(0).double() + torch.diag_embed(alone)
    values = both / alone[..., None]
    dead = int((alone == 0).sum())
    off = torch.cat([off_diagonal(values), off_diagonal(values.mT)], -1)
    facts = {"mean over pairs": float(off.nanmean()), "pairs": int((~off.isnan()).sum()), "dead experts": dead}
    caveats = (f"NaN: {dead} expert(s) without tokens.",) if dead else ()
    # What an expert shares with itself is no finding.
    same = torch.eye(values.shape[-1], dtype=torch.bool)
    trials = torch.where(same, torch.inf, alone[..., None])
    return Values(values, facts=facts, caveats=caveats, trials=trials)


@coactivation.chance
def null(coactivation_counts: State, *, pairs: Pairs, generator: torch.Generator) -> Chance:
    """Partners drawn blindly: each of the other experts with chance (k - 1) / (E - 1), or 2 (k - 1) / (k (E - 1)).

    Returns:
        Shares: mean and 95 % band per row (few tokens scatter more); 1 on the diagonal, NaN for an expert without
        tokens.

    Source:
        Ours: given N_i tokens, N_ij is Binomial(N_i, (k - 1) / (E - 1)), exactly, under blind routing; of the k (k - 1)
        ordered pairs of ranks 2 (k - 1) are neighbours.
    """
    shape = coactivation_counts.shape
    chance = (shape.top_k - 1) / (shape.experts - 1) * (2 / shape.top_k if pairs == "adjacent_rank" else 1)
    alone = coactivation_counts["both"].sum(0).diagonal(dim1=-2, dim2=-1)[..., None].double()
    same, one = torch.eye(shape.experts, dtype=torch.bool), torch.ones(()).double()
    # 0/0 for an expert without tokens is NaN, as in the measure.
    low, high = (torch.as_tensor(binom.ppf(q, alone.numpy(), chance)) / alone for q in (0.025, 0.975))
    mean, low, high = (torch.where(same, one, value) for value in (chance * alone / alone, low, high))
    how = f"blind choice of {shape.top_k} distinct experts, binomial given each expert's own tokens"
    dead = torch.where(alone == 0, torch.nan, one)
    return Chance(mean * dead, low * dead, high * dead, how)
