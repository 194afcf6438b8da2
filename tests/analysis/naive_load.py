"""Loads and certainty, read from their definitions token by token."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from tests.analysis.naive_world import CHOSEN, EXPERTS, LAYERS, Plain, by_layer


def entropy(shares):
    return -sum(q * math.log(q) for q in shares if q > 0)


def expert_load(w: Plain):
    return w.counts / w.counts.mean(-1, keepdims=True)


def load_violation(w: Plain):
    return expert_load(w).max(-1) - 1


def load_entropy(w: Plain):
    return by_layer(lambda layer: entropy(w.counts[layer] / w.counts[layer].sum()) / math.log(6))


def dead_experts(w: Plain):
    return by_layer(lambda layer: sum(n == 0 for n in w.counts[layer]))


def balance_loss(w: Plain):
    """6 sum_e f_e P_e, f the share of selections and P the mean probability."""
    f = w.counts / (CHOSEN * len(w.tokens))
    return by_layer(lambda layer: 6 * sum(f[layer, e] * w.p[layer, :, e].mean() for e in EXPERTS))


def expert_coverage(w: Plain):
    """The N at which sum_e (1 - p_e)^N = 1/2, by bisection."""

    def needed(layer):
        p = w.counts[layer] / len(w.tokens)
        return np.nan if min(p) == 0 else brentq(lambda n: sum((1 - q) ** n for q in p) - 0.5, 0, 1e4, xtol=1e-12)

    return by_layer(needed)


def probability_entropy(w: Plain):
    return by_layer(lambda layer: np.mean([entropy(p) for p in w.p[layer]]))


def routing_information(w: Plain):
    return by_layer(lambda layer: entropy(w.p[layer].mean(0))) - probability_entropy(w)


def router_z_loss(w: Plain):
    return by_layer(lambda layer: np.mean([math.log(sum(np.exp(s))) ** 2 for s in w.logits[layer]]))


def routing_margin(w: Plain):
    """Second best score less the third, mean over tokens."""
    return by_layer(lambda layer: np.mean([sorted(s)[-2] - sorted(s)[-3] for s in w.logits[layer]]))


def selection_bias(w: Plain):
    """Share of selections whose probability lies below the token's second largest."""

    def displaced(layer):
        below = [w.p[layer, t, e] < sorted(w.p[layer, t])[-CHOSEN] for t in w.tokens for e in w.chosen[layer, t]]
        return np.mean(below)

    return by_layer(displaced)


def coactivation(w: Plain):
    both = np.array([sum(np.outer(row, row) for row in w.taken[layer]) for layer in LAYERS])
    with np.errstate(invalid="ignore"):
        return both / w.counts[..., None]


def cross_layer_transition(w: Plain):
    """N_ij / N_i - N_j / T from each layer to the next."""
    found = []
    for layer in LAYERS[:-1]:
        both = sum(np.outer(w.taken[layer, t], w.taken[layer + 1, t]) for t in w.tokens)
        with np.errstate(invalid="ignore"):
            found.append(both / w.counts[layer][:, None] - w.counts[layer + 1] / len(w.tokens))
    return np.array(found)


READINGS = {
    reading.__name__: reading
    for reading in (
        expert_load,
        load_violation,
        load_entropy,
        dead_experts,
        balance_loss,
        expert_coverage,
        probability_entropy,
        routing_information,
        router_z_loss,
        routing_margin,
        selection_bias,
        coactivation,
        cross_layer_transition,
    )
}
