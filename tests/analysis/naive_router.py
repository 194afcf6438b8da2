"""Router rows, and how they hang together with inputs and gates, read from their definitions."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from tests.analysis.naive_world import CHOSEN, EXPERTS, Plain, by_layer, cosine, float32, pairs, table


def _centred(rows):
    return rows - rows.mean(0)


def router_common_mode(w: Plain):
    return by_layer(lambda i: 6 * (w.rows[i].mean(0) ** 2).sum() / (w.rows[i] ** 2).sum())


def router_cosine(w: Plain):
    return table(lambda i, e, f: cosine(w.rows[i, e], w.rows[i, f]))


def router_mean_cosine(w: Plain):
    return by_layer(lambda i: np.mean([cosine(w.rows[i, e], w.rows[i, f]) for e, f in pairs()]))


def router_orthogonality(w: Plain):
    return by_layer(lambda i: sum(cosine(w.rows[i, e], w.rows[i, f]) ** 2 for e, f in pairs()) * 2 / 36)


def router_spectrum(w: Plain):
    return by_layer(lambda i: np.linalg.svd(_centred(w.rows[i]), compute_uv=False))


def expert_router_coupling(w: Plain):
    return table(lambda i, e, f: np.linalg.norm(w.gate[i, f] @ w.rows[i, e]))


def router_gate_response(w: Plain):
    """5 |W r|^2 / (|W|^2 |r|^2), router row by gate."""

    def number(i, e, f):
        gate, row = w.gate[i, f], w.rows[i, e]
        return 5 * np.linalg.norm(gate @ row) ** 2 / (np.linalg.norm(gate) * np.linalg.norm(row)) ** 2

    return table(number)


def router_centroid_cosine(w: Plain):
    def number(i, e, f):
        tokens, _ = w.served(i, f)
        return cosine(w.rows[i, e], w.x[i, tokens].mean(0)) if tokens else np.nan

    return table(number)


def rank_profile(w: Plain):
    """Mean gate answer by rank of the logit, over the common tokens; both are kept in float32."""
    answers, logits = float32(w.phi.mean(-1)), float32(w.logits)

    def profile(i):
        found = np.zeros(6)
        for t in w.common:
            order = sorted(EXPERTS, key=lambda e: -logits[i, t, e])
            found += answers[i, t, order] / len(w.common)
        return found

    return by_layer(profile)


def router_gate_correlation(w: Plain):
    """scipy's Spearman correlation over common tokens and their experts; both are kept in float32."""
    answers, logits = float32(w.phi.mean(-1)), float32(w.logits)

    def rho(i):
        chosen = [(i, t, e) for t in w.common for e in w.chosen[i, t]]
        return spearmanr([logits[at] for at in chosen], [answers[at] for at in chosen]).statistic

    return by_layer(rho)


def gradient_interference(w: Plain):
    """0.01 |A'X| / |D'X|, A and D token by token; what is kept of each token is in float32."""
    p, task = float32(w.p), float32(w.task)
    n = len(w.tokens)

    def ratio(i):
        f = w.counts[i] / (CHOSEN * n)
        balance, own = np.zeros((6, 5)), np.zeros((6, 5))
        for t in w.tokens:
            pull = np.array([6 / n * p[i, t, e] * (f[e] - sum(f * p[i, t])) for e in EXPERTS])
            balance += np.outer(pull, w.x[i, t])
            own += np.outer(task[i, t] / n, w.x[i, t])
        return 0.01 * np.linalg.norm(balance) / np.linalg.norm(own)

    return by_layer(ratio)


READINGS = {
    reading.__name__: reading
    for reading in (
        router_common_mode,
        router_cosine,
        router_mean_cosine,
        router_orthogonality,
        router_spectrum,
        expert_router_coupling,
        router_gate_response,
        router_centroid_cosine,
        rank_profile,
        router_gate_correlation,
        gradient_interference,
    )
}
