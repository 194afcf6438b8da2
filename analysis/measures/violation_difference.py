"""How much more, or less, unbalanced each layer of one checkpoint is than that of another."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from analysis.exchanged import difference, exchanged
from analysis.loads import Extreme, violation
from analysis.measure import Chance, Inputs, Values, measure
from analysis.result import Reason

Count = Literal["selected", "served"]


@measure(
    title="Load violation difference (MaxVio)",
    question="Which layers are less balanced in b than in a?",
    unit="difference of MaxVio (b - a; 0 is no difference)",
    family="compare",
    source="MaxVio: Wang et al. 2024, arXiv 2408.15664; the paired comparison is ours",
    axes=("layer",),
    reads=("prompt_counts",),
    needs_selection=True,
)
def violation_difference(a: Inputs, b: Inputs, *, count: Count = "selected", which: Extreme = "max") -> Values:
    """MaxVio (or MinVio) of each layer of b minus that of a, over the prompts both have; experts need no partners.

    Formula:
        D = V(b) - V(a);  V = max_e n_e / mean_j n_j - 1
        n_e: selections of expert e on that side (`served`: those it served). min: V = 1 - min_e n_e / mean_j n_j.

    Returns:
        One number per layer, -E/k to E/k if all selections are counted, else -E to E; positive where b is less
        balanced. NaN where nothing was routed.

    Raises:
        NotComparable: If layers differ.

    Source:
        Wang et al. 2024, arXiv 2408.15664, for MaxVio.

    Caveat:
        Of few tokens MaxVio is too large on both sides, most where routing is nearly balanced, so a difference from a
        balanced router is too small. With other numbers of experts the two have other ranges. The p asks
        whether it matters which checkpoint is which, prompt by prompt. Where routing is nearly balanced its band is too
        wide (in simulations 0 to 4 % lay outside, where 5 % should), so what is beyond it is.
    """
    return difference(a, b, count, partial(violation, which=which))


@violation_difference.chance
def null(a: Inputs, b: Inputs, *, count: Count, which: Extreme, generator: torch.Generator) -> Chance | Reason:
    """Each prompt's two sides exchanged or not by the toss of a coin, experts in the order of their load.

    Returns:
        Mean 0 and 95 % band per layer. Facts: layers that differ beyond the largest of all by chance, and its p.

    Source:
        Fisher 1935, paired exchange. Max-statistic over layers, each in standard deviations: Westfall & Young 1993.
    """
    return exchanged(a, b, count, partial(violation, which=which), generator)
