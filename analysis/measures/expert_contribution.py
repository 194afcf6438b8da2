"""Whether an expert gives as much as its load says."""

from __future__ import annotations

from typing import Annotated

import torch
from scipy.stats import norm

from analysis.knob import Range
from analysis.measure import Chance, Values, measure
from analysis.saliency import rank_agreement
from analysis.statistic import State

HALF = float(norm.ppf(0.975))


@measure(
    title="Contribution over load",
    question="Does each expert give as much of the output as it gets of the tokens?",
    unit="share of output over share of load (0 or more; 1 is in proportion)",
    family="function",
    source="Ours: routed but silent, or rarely used and loud",
    axes=("layer", "expert"),
)
def expert_contribution(contribution_sums: State, *, silent: Annotated[float, Range(0)] = 0.1) -> Values:
    """(sum g|f| of the expert over that of its layer) / (its served tokens over those of its layer).

    g is the combine weight, f the expert's output; it equals the expert's mean g|f| over the layer's mean. A fact
    counts the experts below `silent`: a bar that is a guess, no source names one. A shared expert, which has no load
    and is in no sum, has the last row: its mean g|f| over all tokens, g the gate on its output, over the routed mean.

    Formula:
        C_e = (G_e / sum_j G_j) / (n_e / sum_j n_j);  G_e = sum of g |f_e(x)|
        Sums over the n_e (token, slot) pairs that expert e served; g combine weight, f_e(x) the expert's output.
        shared expert: (G_s / T) / (sum_j G_j / sum_j n_j), G_s over all T tokens, j a routed expert.

    Returns:
        Layer by expert, 0 or more (0: served tokens, gave nothing; at most sum_j n_j / n_e); 1 is in proportion. NaN
        for an expert without tokens. Where a shared expert serves every token, E + 1 experts, that one last, without
        that bound.

    Raises:
        BadKnob: If `silent` is negative.
        Nothing of its own.

    Source:
        Ours.

    Caveat:
        Norms do not add as vectors do: outputs of two experts may cancel. Rank in the top k and g go together, so an
        expert that is mostly second choice is below 1 whatever its weights are. A shared expert at 1 gives each token a
        k-th of what the k routed ones give it by length.
    """
    served = contribution_sums["served"].sum(0).double()
    given = contribution_sums["weighted_norm"].sum(0)
    load = served / served.sum(-1, keepdim=True)
    output = given / given.sum(-1, keepdim=True)
    values = output / load
    facts = {
        f"experts that give less than {silent:g} of their load": int((values < silent).sum()),
        "rank agreement of output and load, over layers": float(rank_agreement(output, load).nanmean()),
        "experts without tokens": int((served == 0).sum()),
    }
    shared = contribution_sums["shared_weighted_norm"].sum(0) / contribution_sums["shared_served"].sum(0)
    values = torch.cat([values, shared * served.sum(-1, keepdim=True) / given.sum(-1, keepdim=True)], -1)
    caveats = ("NaN: an expert that served no token gave nothing to compare.",) if bool(values.isnan().any()) else ()
    return Values(values, facts=facts, caveats=caveats)


@expert_contribution.chance
def null(contribution_sums: State, *, silent: float, generator: torch.Generator) -> Chance:
    """The layer's contributions g|f| dealt to its experts blindly, each as many as it served.

    Returns:
        1, and the 95 % band per layer and expert: wider for few tokens; NaN for an expert without any, and for a shared
        one, to which nothing is dealt.

    Source:
        Ours: mean and variance of a sample without replacement (exact), the shape normal.
    """
    served, first, second = (
        contribution_sums[name].sum(0).double() for name in ("served", "weighted_norm", "weighted_norm_squared")
    )
    total = served.sum(-1, keepdim=True)
    mean = first.sum(-1, keepdim=True) / total
    variance = (second.sum(-1, keepdim=True) / total - mean**2).clamp(min=0)
    spread = (variance / served * (total - served) / (total - 1)).sqrt() / mean
    # 0/0 for an expert without tokens: no band where there is no value.
    one = torch.where(served > 0, torch.ones_like(spread), torch.nan)
    spread = torch.where(served > 0, spread, torch.nan)
    nobody = one.new_full(contribution_sums["shared_weighted_norm"].shape[1:], torch.nan)
    one, spread = (torch.cat([each, nobody], -1) for each in (one, spread))
    how = (
        "contributions of the layer dealt to experts blindly, normal with the variance of sampling without replacement"
    )
    return Chance(one, one - HALF * spread, one + HALF * spread, how)
