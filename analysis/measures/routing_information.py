"""How much a router's choice depends on the token."""

from __future__ import annotations

import torch

from analysis.certainty import hidden, per_token
from analysis.loads import over_layers
from analysis.measure import Values, measure
from analysis.statistic import State


@measure(
    title="Routing information",
    question="How much does the choice of expert depend on the token?",
    unit="nats (0 to ln E; 0 is the same choice for every token)",
    family="routing",
    source="Mutual information of token and expert (Shannon 1948), as Fast-LLM and other trainers log it",
    axes=("layer",),
    null="0 is reached only if every token gets the same probabilities; any dependence on the token, even on noise, "
    "is information",
    plug_in=True,
)
def routing_information(router_sums: State) -> Values:
    """I = H(mean_t p_t) - mean_t H(p_t): the entropy of the mean probabilities minus the mean entropy, plug-in.

    It tells "uniform because undecided" (both terms high, I = 0) from "balanced and decided" (I near ln E).

    Formula:
        I = -sum_e P_e ln P_e - (1/T) sum_t sum_e -p_te ln p_te;  P_e = (1/T) sum_t p_te
        p_te: router probability of expert e for token t (sigmoid scores over their sum); T tokens.

    Returns:
        One number per layer, 0 to ln E nats. NaN where the router hides its scores.

    Raises:
        Nothing of its own.

    Source:
        Shannon 1948.

    Caveat:
        The entropy of a mean over few tokens is too low, so I is: the interval is centred on the bias-corrected value.
        It says that the choice depends on the token, not that it depends on its meaning.
    """
    mean = per_token(router_sums, "probabilities", "scored")
    spread = torch.special.entr(mean).sum(-1)
    within = per_token(router_sums, "entropy", "scored")
    # Rounding may leave -1e-16 where all tokens agree.
    values = (spread - within).clamp(min=0)
    facts = over_layers(values, router_sums.shape.layers, "lowest")
    facts |= {
        "entropy of the mean, over layers": float(spread.nanmean()),
        "mean entropy, over layers": float(within.nanmean()),
    }
    return Values(values, facts=facts, caveats=hidden(values))
