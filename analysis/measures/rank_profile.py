"""How strongly the gate of the first, second, ... ranked expert answers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.correlation import correlation
from analysis.gate_activity import ACTIVITIES, Activity
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.result import Axis
from analysis.score_gate import shuffles
from analysis.statistic import State

DRAWS = 100


@measure(
    title="Gate activation by rank",
    question="Do the experts that the router ranks first answer a token more strongly than the rest?",
    unit="gate activation (unit of the activation; positive: share of neurons)",
    family="coupling",
    source="Ours, after the comparison of selected and unselected experts in Ahrac et al. 2026, arXiv 2605.12476",
    axes=("layer", "rank"),
)
def rank_profile(score_gate_tokens: State, *, activity: Activity = "mean") -> Values:
    """Mean over common tokens of the gate answer of the expert with the r-th largest logit, for every rank.

    Formula:
        A_r = (1/T) sum_t a_t,e(t,r);  a_te = mean over hidden neurons of phi(W_gate,e x_t)
        e(t,r): expert with the r-th largest logit for token t; T sampled common tokens. Other numbers of the same gate
        as `activity` says: |phi(z)|, mean |phi(z)|, |z|, share of z > 0, with z = W_gate,e x_t.

    Returns:
        Layer by rank, rank 1 first: any number in the unit of the activation, 0 or more for norms and sizes, 0 to 1 for
        `positive`. NaN where the router hides its scores or no common token was seen.

    Raises:
        Nothing of its own.

    Source:
        Ours.

    Caveat:
        Ranks beyond k were never used: the router did not learn from them. Two layers compare in shape only, since
        activations have a scale of their own in each.
    """
    shape = score_gate_tokens.shape
    found = torch.stack([_profile(score_gate_tokens, layer, activity) for layer in range(len(shape.layers))])
    ranks = torch.arange(shape.experts, dtype=torch.float64).expand_as(found)
    falls = correlation(ranks, found, "spearman").nanmean()
    facts: dict[str, int | float | str] = {
        "rank correlation of rank and activation": float(falls),
        "fewest common tokens": int((score_gate_tokens["block"] >= 0).sum(-1).min()),
    }
    if not shape.soft:
        ahead = found[:, : shape.top_k].mean(-1) - found[:, shape.top_k :].mean(-1)
        facts["selected minus the rest"] = float(ahead.mean())
    axes = (Axis("layer", shape.layers), Axis("rank", tuple(str(r + 1) for r in range(shape.experts))))
    hidden = "NaN: the router hides its scores, or no common token was seen."
    return Values(found, axes, (hidden,) if bool(found.isnan().any()) else (), facts)


@rank_profile.chance
def null(score_gate_tokens: State, *, activity: Activity, generator: torch.Generator) -> Chance:
    """Each token's ranking over the gates of experts drawn at random.

    Returns:
        In the unit of the activation: mean and central 95 % band per layer and rank.

    Source:
        Ours: permutations of the experts.
    """
    layers = []
    for layer in range(len(score_gate_tokens.shape.layers)):
        pairings = shuffles(score_gate_tokens, layer, DRAWS, generator)
        drawn = torch.stack([_profile(score_gate_tokens, layer, activity, partner) for partner in pairings])
        layers.append(torch.stack([drawn.mean(0), *central_band(drawn)]))
    centre, low, high = torch.stack(layers, 1)
    return Chance(centre, low, high, f"{DRAWS} pairings of rankings with the gates of experts drawn at random")


def _profile(sample: State, layer: int, activity: Activity, partner: Tensor | None = None) -> Float[Tensor, " rank"]:
    there = sample["block"][layer] >= 0
    logits = sample["logits"][layer][there]
    answers = sample["activity"][layer][there][..., ACTIVITIES.index(activity)].double()
    answers = answers if partner is None else answers[:, partner]
    order = logits.argsort(dim=-1, descending=True, stable=True)
    return answers.gather(1, order).masked_fill(logits.isnan(), torch.nan).mean(0)
