"""Whether the router scores a token high where the expert's gate answers strongly."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.correlation import Coefficient
from analysis.gate_activity import Activity
from analysis.loads import over_layers
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.result import Reason
from analysis.score_gate import (
    Control,
    Pairs,
    Pooled,
    Question,
    Score,
    of_pairings,
    pair_points,
    shuffles,
    token_points,
)
from analysis.score_gate import mismatched as mean_mismatched
from analysis.statistic import State

DRAWS = 100
NO_SIZE = "Within a token |x| is one number: there was nothing for the control of input size to take out."
NO_EXCESS = "Within an expert its mean is one number: the excess probability correlates as the probability does."
OWN_TOKENS = (
    "each expert's own tokens have no other expert's gate beside them, and the fewer common tokens would make a band "
    "too wide: pairs=all or control=mismatched stand on common tokens"
)
HIDDEN = "NaN: the router hides its scores, or fewer than three pairs, or all of them equal."


@measure(
    title="Router score and gate activation",
    question="Does the router score a token high where the expert's gate answers strongly?",
    unit="correlation (-1 to 1; mismatched: difference of two)",
    family="coupling",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476; which score, aggregate, pairs and coefficient were used is "
    "not known: every default but the idea is a guess",
    axes=("layer",),
    slow_if={"coefficient": "kendall"},
)
def router_gate_correlation(
    score_gate_pairs: State,
    score_gate_tokens: State,
    *,
    score: Score = "logit",
    activity: Activity = "mean",
    pairs: Pairs = "selected",
    pooled: Pooled = "layer",
    coefficient: Coefficient = "spearman",
    control: Control = "none",
) -> Values:
    """Correlation between the score s_ti and one number of expert i's gate activations phi(W_gate,i x_t).

    `activity`, over neurons: mean phi(z), |phi(z)|, mean |phi(z)|, |z|, share of z > 0. `pairs`: token and selected
    expert, or all experts. `pooled`: one coefficient over the layer, or the mean of those within each token or within
    each expert. `excess probability` is minus the expert's mean, which changes nothing within experts. `control`:
    `mismatched` subtracts the same with every other expert's gate; `input size` takes out |x|, which changes nothing
    within tokens. Common tokens, at most 256; within experts over selected pairs, up to 256 tokens that each served.

    Formula:
        rho = Spearman correlation over all pairs (t, e selected by t) of s_te and a_te
        s_te: logit; a_te: mean over hidden neurons of phi(W_gate,e x_t); t: at most 256 common tokens. mismatched: rho
        minus its mean with a_te' of another expert e' in place of a_te, every two once. input size: (rho - r_sx r_ax) /
        sqrt((1 - r_sx^2) (1 - r_ax^2)), r the coefficients with x = |x_t|.

    Returns:
        One coefficient per layer, -1 to 1 (a difference: -2 to 2). NaN with fewer than three pairs.

    Raises:
        Nothing of its own.

    Source:
        Ahrac, Hochwald & Geva 2026, arXiv 2605.12476.

    Caveat:
        Both sides grow with |x|, and popular experts may have both large scores and strong gates: a correlation that
        mismatched experts share is no coupling. Read it against the null, or ask for the difference.
    """
    question = Question(score, activity, pairs, pooled, coefficient, control)
    found, others, points = [], [], 0
    for layer in range(len(score_gate_tokens.shape.layers)):
        own = _of_own_tokens(question)
        here = (
            pair_points(score_gate_pairs, layer, question) if own else token_points(score_gate_tokens, layer, question)
        )
        points += int((~here[0].isnan()).sum())
        found.append(question.value(here))
        if control == "mismatched":
            others.append(mean_mismatched(score_gate_tokens, layer, question))
    values, facts = torch.stack(found), {"pairs": points}
    if others:
        facts |= {"mean matched": float(values.nanmean()), "mean mismatched": float(torch.stack(others).nanmean())}
        values = values - torch.stack(others)
    facts |= over_layers(values, score_gate_tokens.shape.layers, "highest")
    return Values(values, facts=facts, caveats=_said(question, values))


def _of_own_tokens(question: Question) -> bool:
    return question.pooled == "expert" and question.pairs == "selected" and question.control != "mismatched"


def _said(question: Question, values: Float[Tensor, " layer"]) -> tuple[str, ...]:
    caveats = (NO_SIZE,) if question.pooled == "token" and question.control == "input size" else ()
    caveats += (NO_EXCESS,) if question.pooled == "expert" and question.score == "excess probability" else ()
    return (*caveats, HIDDEN) if bool(values.isnan().any()) else caveats


@router_gate_correlation.chance
def null(
    score_gate_pairs: State,
    score_gate_tokens: State,
    *,
    score: Score,
    activity: Activity,
    pairs: Pairs,
    pooled: Pooled,
    coefficient: Coefficient,
    control: Control,
    generator: torch.Generator,
) -> Chance | Reason:
    """The same scores against the gates of experts drawn at random.

    Returns:
        Correlations: mean and central 95 % band per layer; none within experts over the pairs they served.

    Source:
        Ours: a permutation of the experts keeps each token's size and each expert's strength.
    """
    question = Question(score, activity, pairs, pooled, coefficient, control)
    if control == "mismatched":
        return Reason("the mismatched experts, which are its null, are already taken out")
    if _of_own_tokens(question):
        return Reason(OWN_TOKENS)
    centre, low, high = [], [], []
    for layer in range(len(score_gate_tokens.shape.layers)):
        pairings = shuffles(score_gate_tokens, layer, DRAWS, generator)
        drawn = of_pairings(score_gate_tokens, layer, question, pairings)
        centre.append(drawn.mean())
        for bound, found in zip((low, high), central_band(drawn), strict=True):
            bound.append(found)
    how = f"{DRAWS} pairings of scores with the gates of experts drawn at random, on the common tokens"
    stacked: list[Tensor] = [torch.stack(part) for part in (centre, low, high)]
    return Chance(*stacked, how=how)
