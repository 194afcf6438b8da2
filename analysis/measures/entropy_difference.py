"""How much more, or less, evenly each layer of one checkpoint spreads its work than that of another."""

from __future__ import annotations

from typing import Literal

import torch

from analysis.exchanged import difference, exchanged
from analysis.loads import evenness
from analysis.measure import Chance, Inputs, Values, measure
from analysis.result import Reason

Count = Literal["selected", "served"]


@measure(
    title="Load entropy difference",
    question="Which layers spread their work more evenly in b than in a?",
    unit="difference of entropy over ln E (b - a; 0 is no difference)",
    family="compare",
    source="Shannon 1948 over the loads of Wang et al. 2024, arXiv 2408.15664; the paired comparison is ours",
    axes=("layer",),
    reads=("prompt_counts",),
    needs_selection=True,
)
def entropy_difference(a: Inputs, b: Inputs, *, count: Count = "selected") -> Values:
    """Entropy of the loads of each layer of b minus that of a, over the prompts both have; experts need no partners.

    Formula:
        D = H(b) - H(a);  H = -(1 / ln E) sum_e q_e ln q_e;  q_e = n_e / sum_j n_j
        n_e: selections of expert e on that side (`served`: those it served); E its number of experts.

    Returns:
        One number per layer, -1 to 1; positive where b is more even. NaN where nothing was routed.

    Raises:
        NotComparable: If layers differ.

    Source:
        Shannon 1948; normalised by its largest value.

    Caveat:
        Entropy of few tokens is too low on both sides, which nearly cancels where both have as many tokens and experts.
        Numbers near 1 can hide one hot expert: read it beside the difference of load violation. The p asks
        whether it matters which checkpoint is which, prompt by prompt. Where routing is nearly balanced its band is too
        wide (in simulations 0 to 4 % lay outside, where 5 % should), so what is beyond it is.
    """
    return difference(a, b, count, evenness)


@entropy_difference.chance
def null(a: Inputs, b: Inputs, *, count: Count, generator: torch.Generator) -> Chance | Reason:
    """Each prompt's two sides exchanged or not by the toss of a coin, experts in the order of their load.

    Returns:
        Mean 0 and 95 % band per layer. Facts: layers that differ beyond the largest of all by chance, and its p.

    Source:
        Fisher 1935, paired exchange. Max-statistic over layers, each in standard deviations: Westfall & Young 1993.
    """
    return exchanged(a, b, count, evenness, generator)
