"""Signatures of prompts, kinds of prompts and token ids, read from their definitions."""

from __future__ import annotations

import math

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from tests.analysis.naive_world import CHOSEN, EXPERTS, LAYERS, Plain, by_layer, cosine


def _of_pairs(w: Plain, layer, same):
    s = w.shares[layer]
    return [cosine(s[p], s[q]) for p in w.prompts for q in w.prompts if p < q and (w.kinds[p] == w.kinds[q]) == same]


def signature_similarity(w: Plain):
    s = w.shares
    return np.array([[np.mean([cosine(s[i, p], s[i, q]) for i in LAYERS]) for q in w.prompts] for p in w.prompts])


def signature_effect(w: Plain):
    def d(layer):
        within, across = (_of_pairs(w, layer, same) for same in (True, False))
        n, m = len(within), len(across)
        pooled = ((n - 1) * np.var(within, ddof=1) + (m - 1) * np.var(across, ddof=1)) / (n + m - 2)
        # Cosines that do not vary, but by rounding, are no unit to count in.
        return (np.mean(within) - np.mean(across)) / math.sqrt(pooled) if pooled > 1e-24 else np.nan

    return by_layer(d)


def signature_baselines(w: Plain):
    """Within, across, under new names for the experts, under blind routing of 12 tokens to 2 of 6."""

    def row(layer):
        sizes = [np.linalg.norm(s) for s in w.shares[layer]]
        renamed = np.mean([1 / (6 * sizes[p] * sizes[q]) for p in w.prompts for q in w.prompts if p < q])
        spread = (6 - CHOSEN) / (CHOSEN * 12)
        return [np.mean(_of_pairs(w, layer, True)), np.mean(_of_pairs(w, layer, False)), renamed, 1 / (1 + spread)]

    return by_layer(row)


def signature_classifier(w: Plain):
    """scikit-learn's own regression, scaler and folds.

    For two kinds its one vector of weights is the difference of the two of a softmax, whose squares sum to half of
    that: C = 2 where the softmax has a penalty of 1. Where all prompts have one signature it guesses the commoner kind.
    """
    features = np.concatenate([w.shares[layer] for layer in LAYERS], -1)
    features[:, np.ptp(features, 0) < 1e-12] = 0
    right = []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(features, w.kinds):
        scaler = StandardScaler().fit(features[train])
        guess = DummyClassifier(strategy="most_frequent")
        model = LogisticRegression(C=2.0, solver="newton-cholesky", tol=1e-8) if features.any() else guess
        model.fit(scaler.transform(features[train]), w.kinds[train])
        right.append(model.score(scaler.transform(features[test]), w.kinds[test]))
    return np.mean(right)


def signature_outlier(w: Plain):
    """1 - cosine to the mean of a kind's other prompts, mean over layers."""

    def distance(p, kind):
        others = [q for q in w.prompts if w.kinds[q] == kind and q != p]
        return np.mean([1 - cosine(w.shares[i, p], w.shares[i, others].mean(0)) for i in LAYERS])

    return np.array([[distance(p, kind) for kind in "ab"] for p in w.prompts])


def domain_specialisation(w: Plain):
    def share(layer, e, kind):
        own = [t for t in w.tokens if w.kinds[w.prompt[t]] == kind]
        return w.taken[layer, own, e].sum() / (CHOSEN * len(own))

    return np.array([[[share(layer, e, kind) for kind in "ab"] for e in EXPERTS] for layer in LAYERS])


def token_class_specialisation(w: Plain):
    def share(layer, e, kind):
        own = [t for t in w.tokens if w.classes[t] == kind]
        return w.taken[layer, own, e].sum() / (CHOSEN * len(own)) if own else np.nan

    return np.array([[[share(layer, e, kind) for kind in range(6)] for e in EXPERTS] for layer in LAYERS])


def expert_contrast(w: Plain):
    per_token = CHOSEN * domain_specialisation(w)
    return per_token[..., 0] - per_token[..., 1]


def _of_ids(w: Plain, layer):
    """First-ranked experts of each id with ten tokens or more: the likelier by weight, else the earlier."""
    first = [w.chosen[layer, t, np.argmax(w.g[layer, t])] for t in w.tokens]
    rows = [[first[t] for t in w.tokens if w.ids[t] == i] for i in sorted(set(w.ids.tolist()))]
    return [np.bincount(row, minlength=6) for row in rows if len(row) >= 10]


def token_context_split(w: Plain):
    """I(e; id) and H(e | id) in bits, each entropy with Miller's (K - 1) / (2 m ln 2)."""

    def entropy(counts):
        q = counts[counts > 0] / counts.sum()
        return -(q * np.log2(q)).sum() + (len(q) - 1) / (2 * counts.sum() * math.log(2))

    def both(layer):
        counts = _of_ids(w, layer)
        left = sum(n.sum() * entropy(n) for n in counts) / sum(n.sum() for n in counts)
        return [entropy(sum(counts)) - left, left]

    return by_layer(both)


def vocabulary_specialisation(w: Plain):
    return by_layer(lambda layer: np.mean([n.max() / n.sum() for n in _of_ids(w, layer)]))


READINGS = {
    reading.__name__: reading
    for reading in (
        signature_similarity,
        signature_effect,
        signature_baselines,
        signature_classifier,
        signature_outlier,
        domain_specialisation,
        token_class_specialisation,
        expert_contrast,
        token_context_split,
        vocabulary_specialisation,
    )
}
