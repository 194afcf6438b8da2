"""How much of the work each expert gets."""

from __future__ import annotations

from typing import Literal

import torch
from scipy.stats import binom

from analysis.loads import idle, layer_counts, relative
from analysis.measure import Chance, Values, measure
from analysis.result import Reason
from analysis.statistic import State


@measure(
    title="Expert load",
    question="Which experts do the work, layer by layer?",
    unit="load over uniform (0 to E/k, to E if not all selections count; 1 is an equal share)",
    family="routing",
    source="Wang et al. 2024, arXiv 2408.15664 (Load_i); counts as in Muennighoff et al. 2024, arXiv 2409.02060",
    axes=("layer", "expert"),
    needs_selection=True,
)
def expert_load(prompt_counts: State, *, count: Literal["selected", "served"] = "selected") -> Values:
    """The share of (token, slot) pairs an expert receives, relative to an equal share.

    Formula:
        L_e = n_e / mean_j n_j
        n_e: selections of expert e (`served`: those it served). mean_j n_j is k T / E, of T tokens, where every
        selection is counted.

    Returns:
        Layer by expert, 0 to E/k if all selections are counted; 1 is an equal share, 0 an expert without tokens. Where
        some are not (`served` without what capacity dropped or a skip expert took; choices of identity experts), the
        share is of those that are, and 0 to E holds: one expert may have all of them.

    Raises:
        Nothing of its own.

    Source:
        Wang et al. 2024, arXiv 2408.15664.

    Caveat:
        Tokens of one prompt are alike, so the floor of independent tokens is narrower than what prompts scatter; the
        interval is over blocks of prompts. The floor is of all k selections of every token, so it is also too narrow
        where some are not counted.
    """
    counts = layer_counts(prompt_counts, count)
    facts, caveats = idle(counts)
    return Values(relative(counts), facts=facts, caveats=caveats)


@expert_load.chance
def null(prompt_counts: State, *, count: str, generator: torch.Generator) -> Chance | Reason:
    """Uniform routing of k distinct experts per token: each expert's count is binomial.

    Returns:
        Load over uniform, the same band for every expert.

    Source:
        Ours: the count of one expert over T independent tokens is Binomial(T, k/E), exactly.
    """
    tokens = int(prompt_counts["tokens"].sum())
    if not tokens:
        return Reason("no token was routed")
    share = prompt_counts.shape.top_k / prompt_counts.shape.experts
    low, high = (torch.tensor(binom.ppf(q, tokens, share) / (tokens * share)) for q in (0.025, 0.975))
    how = f"uniform routing of {tokens} independent tokens, binomial per expert"
    return Chance(torch.ones((), dtype=torch.float64), low, high, how)
