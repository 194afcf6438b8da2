"""Which experts a pruning criterion would keep."""

from __future__ import annotations

import math

import torch

from analysis.measure import Values, measure
from analysis.saliency import CRITERIA, Criterion, rank_agreement, scores
from analysis.slots import BLOCKS
from analysis.statistic import State

NO_TOKENS = "NaN: an expert that served no token has no mean; by a criterion that counts tokens it has 0."
NO_INTERVAL = "a maximum has none: leaving prompts out can only lower it, by how much they do not say"


@measure(
    title="Expert saliency",
    question="Which experts would a pruning criterion keep, and would another agree?",
    unit="score over the layer's mean (0 to E; 1 is average)",
    family="function",
    source="Lasby et al. 2025, arXiv 2510.13999 (REAP and the criteria in its code); MSAN: arXiv 2606.15716, from its "
    "abstract; written as one family by us",
    axes=("layer", "expert"),
    no_interval_if={"criterion": {"max_activation": NO_INTERVAL, "max_activation_signed": NO_INTERVAL}},
    null="importance has no chance level: read the agreement with a split half, and with the other criteria",
)
def expert_saliency(contribution_sums: State, output_sums: State, *, criterion: Criterion = "reap") -> Values:
    """n^a mean(g^b |f|^c) over the n tokens an expert served, over the layer's mean; g combine weight, f output.

    (a, b, c): frequency (1,0,0), soft_count (1,1,0), ean_sum (1,0,1), ean_mean (0,0,1; MAN), msan (0,0,2),
    weighted_ean_sum (1,1,1), reap (0,1,1). Beside the family ean_ca, |mean f|: the size of an expert's mean output,
    which is small where its outputs point everywhere; max_activation, the largest |f_j| of any token and component j;
    max_activation_signed, the largest f_j or 0, as REAP's code has it. The lowest scores are what would be pruned.

    A shared expert has no row: no router chooses it, so it has no n and no selection to lose, and none of these codes
    would prune it. What it gives beside the others is in `expert_contribution`.

    Facts, means over layers: Spearman rank agreement of two halves of the prompts (the ceiling for any agreement), and
    with each other criterion.

    Formula:
        S_e = s_e / mean_j s_j;  s_e = (1/n_e) sum of g |f_e(x)|   (reap)
        In general s_e = n_e^a mean(g^b |f_e(x)|^c), over the n_e tokens that expert e served; experts without s_e are
        left out of mean_j. g: combine weight, f_e(x): output of the expert. ean_ca: s_e = |(1/n_e) sum of f_e(x)|.
        max_activation: s_e = max over tokens and components j of |f_e(x)_j|; signed: of f_e(x)_j and 0.

    Returns:
        Layer by expert, 0 to E. NaN for an expert without tokens where a = 0, by ean_ca and by both maxima. Routed
        experts only, in a model with a shared one too.

    Raises:
        Nothing of its own.

    Source:
        Lasby et al. 2025, arXiv 2510.13999.

    Caveat:
        Criteria disagree and none is right for every use: one work asks for gate times norm, another for norms without
        the gate. An expert without tokens on these prompts would be pruned first by some codes; that is the prompts'
        doing. A selection that capacity dropped is not counted. A maximum grows with the tokens, and no interval is
        given: in simulations that of the jackknife held it 76 to 79 % of the time. The signed one misses large negative
        components.
    """
    sums = contribution_sums, output_sums
    values = scores(*sums, criterion)
    halves = (scores(*sums, criterion, range(start, BLOCKS, 2)) for start in (0, 1))
    facts = {"agreement of two halves": _mean(rank_agreement(*halves))}
    for other in CRITERIA:
        if other != criterion:
            facts[f"agreement with {other}"] = _mean(rank_agreement(values, scores(*sums, other)))
    values = values / values.nanmean(-1, keepdim=True)
    return Values(values, facts=facts, caveats=(NO_TOKENS,) if bool(values.isnan().any()) else ())


def _mean(values: torch.Tensor) -> float:
    return float(values.nanmean()) if bool((~values.isnan()).any()) else math.nan
