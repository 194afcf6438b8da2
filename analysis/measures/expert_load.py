"""How much of the work each expert gets."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from analysis.measure import Chance, measure
from analysis.statistic import State


@measure(
    title="Expert load",
    question="Which experts do the work, layer by layer?",
    unit="load over uniform (0 to E/k; 1 is an equal share)",
    family="routing",
    source="Wang et al. 2024, arXiv 2408.15664 (Load_i); counts as in Muennighoff et al. 2024, arXiv 2409.02060",
    axes=("layer", "expert"),
    needs_selection=True,
)
def expert_load(prompt_counts: State, *, count: Literal["selected", "served"] = "selected") -> Tensor:
    """The share of (token, slot) pairs an expert receives, relative to an equal share.

    `n_e / (k T / E)` with `n_e` the selections of expert e over the T tokens.

    Returns:
        Layer by expert, 0 to E/k; 1 is an equal share, 0 an expert without tokens.

    Source:
        Wang et al. 2024, arXiv 2408.15664.

    Caveat:
        Tokens of one prompt are alike, so the floor of independent tokens is narrower than what prompts scatter; the interval is over
        blocks of prompts.
    """
    counts = prompt_counts[count].sum(0).double()
    return counts / counts.mean(-1, keepdim=True)


@expert_load.chance
def null(prompt_counts: State, *, count: str, generator: torch.Generator) -> Chance:
    """Uniform routing of k distinct experts per token: a hypergeometric share, close to normal at these counts."""
    tokens = int(prompt_counts["tokens"].sum())
    share = prompt_counts.shape.top_k / prompt_counts.shape.experts
    sd = ((1 - share) / (share * tokens)) ** 0.5
    mean = torch.ones(())
    return Chance(mean, mean - 1.96 * sd, mean + 1.96 * sd, f"uniform routing of {tokens} independent tokens, binomial per expert")
