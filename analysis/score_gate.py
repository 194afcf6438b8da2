"""Router scores against gate answers: which points are correlated, how, and with whose gate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.correlation import Coefficient, correlation, partial
from analysis.gate_activity import ACTIVITIES, Activity
from analysis.statistic import State

Score = Literal["logit", "probability", "excess probability"]
Pairs = Literal["selected", "all"]
Pooled = Literal["layer", "token", "expert"]
Control = Literal["none", "mismatched", "input size"]

Points = tuple[Float[Tensor, "group point"], Float[Tensor, "*pairing group point"], Float[Tensor, "group point"]]
"""Scores, gate answers and |x|, one row per group that is correlated on its own; NaN where there is no point."""
AT_ONCE = 2**21
"""Points that are correlated in one go: 16 MB a number."""


@dataclass(frozen=True)
class Question:
    """Everything that a published correlation between scores and gates leaves open."""

    score: Score
    activity: Activity
    pairs: Pairs
    pooled: Pooled
    coefficient: Coefficient
    control: Control

    def value(self, points: Points) -> Float[Tensor, "*pairing"]:
        """Mean over groups of the coefficient, |x| taken out if asked for."""
        score, activity, size = points
        found = correlation(score, activity, self.coefficient)
        # Within a token |x| is one number: there is nothing to take out.
        if self.control == "input size" and self.pooled != "token":
            sizes = (correlation(side, size, self.coefficient) for side in (score, activity))
            found = partial(found, *sizes)
        return found.nanmean(-1)

    def chosen(self, activity: Float[Tensor, "*point activity"]) -> Float[Tensor, "*point"]:
        """The answer that is asked for."""
        return activity[..., ACTIVITIES.index(self.activity)].double()


def token_points(
    sample: State, layer: int, question: Question, partner: Int[Tensor, "*pairing expert"] | None = None
) -> Points:
    """Points from common tokens; with `partner`, expert i's scores meet the gate of expert `partner[..., i]`.

    Returns:
        As `Points`, grouped as the question pools.

    Source:
        Ours.
    """
    there = sample["block"][layer] >= 0
    score = sample["logits" if question.score == "logit" else "probabilities"][layer][there].double()
    score = score - score.nanmean(0) if question.score == "excess probability" else score
    if question.pairs == "selected":
        score = score.masked_fill(sample["selected"][layer][there] != 1, torch.nan)
    activity = question.chosen(sample["activity"][layer][there])
    activity = activity if partner is None else activity[:, partner].movedim(0, -2)
    size = sample["size"][layer][there].double()[:, None].expand_as(score)
    if question.pooled == "layer":
        known = ~score.isnan()
        return score[known][None], activity[..., known][..., None, :], size[known][None]
    if question.pooled == "token":
        return score, activity, size
    return score.mT, activity.mT, size.mT


def pair_points(sample: State, layer: int, question: Question) -> Points:
    """Points from each expert's own served tokens, grouped by expert.

    Returns:
        As `Points`.

    Source:
        Ours.
    """
    score = sample["logit" if question.score == "logit" else "probability"][layer].double()
    score = score - score.nanmean(-1, keepdim=True) if question.score == "excess probability" else score
    return score, question.chosen(sample["activity"][layer]), sample["size"][layer].double()


def order_of_experts(sample: State, layer: int) -> Int[Tensor, " expert"]:
    """An order of a layer's experts that does not depend on their numbers: by the mean of |z|, which has no ties.

    Returns:
        Expert numbers.

    Source:
        Ours: a control that pairs experts must pair the same ones when they are renumbered.
    """
    there = sample["block"][layer] >= 0
    return sample["activity"][layer][there][..., ACTIVITIES.index("input_norm")].double().mean(0).argsort()


def mismatches(sample: State, layer: int) -> Iterator[Int[Tensor, " expert"]]:
    """E - 1 pairings of each expert with another one, in which every two different experts meet exactly once.

    Returns:
        Partners, one per expert.

    Source:
        Ours: the cyclic Latin square without its diagonal.
    """
    order = order_of_experts(sample, layer)
    for shift in range(1, len(order)):
        yield torch.empty_like(order).scatter_(0, order, order.roll(-shift))


def shuffles(sample: State, layer: int, draws: int, generator: torch.Generator) -> Iterator[Int[Tensor, " expert"]]:
    """Pairings of each expert with one drawn without replacement, itself among them.

    Returns:
        Partners, one per expert.

    Source:
        Ours: if scores and gates are unrelated, the true pairing is one of these.
    """
    order = order_of_experts(sample, layer)
    for _ in range(draws):
        drawn = torch.randperm(len(order), generator=generator)
        yield torch.empty_like(order).scatter_(0, order, order[drawn])


def mismatched(sample: State, layer: int, question: Question) -> Float[Tensor, ""]:
    """The coefficient between an expert's scores and the gates of all other experts on the same tokens.

    Returns:
        Mean over all pairs of different experts, -1 to 1.

    Source:
        Ours: what is left when the pairing carries nothing.
    """
    return of_pairings(sample, layer, question, mismatches(sample, layer)).nanmean()


def of_pairings(
    sample: State, layer: int, question: Question, partners: Iterable[Int[Tensor, " expert"]]
) -> Float[Tensor, " pairing"]:
    """The coefficient of each pairing, as many at once as fit.

    Returns:
        -1 to 1 each.

    Source:
        Ours.
    """
    every = torch.stack(list(partners))
    there = int((sample["block"][layer] >= 0).sum())
    parts = every.split(max(1, AT_ONCE // max(1, there * every.shape[-1])))
    return torch.cat([question.value(token_points(sample, layer, question, part)) for part in parts])
