"""Two checkpoints, or two steps of a run: read from the definitions, the first the unplanted world."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq, linear_sum_assignment

from tests.analysis.naive_load import expert_load, load_entropy, load_violation
from tests.analysis.naive_prompts import signature_effect
from tests.analysis.naive_subspaces import angles, axes, centroids, shadow, smallest
from tests.analysis.naive_world import CHOSEN, EXPERTS, LAYERS, Plain, by_expert, by_layer, cosine, table

NOBODY = -1


def expert_matching(a: Plain, b: Plain):
    """Cosines of who takes which token, each minus its mean over tokens."""

    def number(layer, e, f):
        u, v = a.taken[layer, :, e], b.taken[layer, :, f]
        return np.nan if min(np.ptp(u), np.ptp(v)) == 0 else cosine(u - u.mean(), v - v.mean())

    return table(number)


def _reached(a: Plain, b: Plain, layer, e, f):
    """The cosine that the best of 36 blind pairs passes one time in 20 at most, by Hoeffding's bound."""
    tokens, one, other = len(a.tokens), a.counts[layer, e], b.counts[layer, f]
    n, p = min(one, other), max(one, other) / tokens

    def above(x):
        apart = x * math.log(x / p) + ((1 - x) * math.log((1 - x) / (1 - p)) if x < 1 else 0)
        return n * apart - math.log(36 / 0.05)

    both = n * brentq(above, p, 1, xtol=1e-15) if p < 1 and n and above(1) > 0 else tokens
    spread = math.sqrt(one * (tokens - one) * other * (tokens - other))
    return np.clip((tokens * both - one * other) / spread, 0, 1) if spread else 1.0


def _direction_reached():
    """The same for two random directions of five dimensions: P(|cos| > c) by the area of two caps of the sphere."""

    def beyond(c):
        a = math.acos(c)
        # Density of the angle: sin^3.
        cap = 2 / 3 - math.cos(a) + math.cos(a) ** 3 / 3
        return cap / (4 / 3) - 0.05 / 36

    return brentq(beyond, 0, 1, xtol=1e-15)


def _assigned(likeness, reached):
    """For each expert of a its partner in b, by the largest sum of cosines; those that chance reaches stay alone."""
    found = np.full((3, 6), NOBODY)
    for layer in LAYERS:
        for e, f in zip(*linear_sum_assignment(np.nan_to_num(likeness[layer], nan=-2), maximize=True), strict=True):
            if likeness[layer, e, f] > reached(layer, e, f):
                found[layer, e] = f
    return found


def partners(a: Plain, b: Plain, matching):
    if matching == "identity":
        return np.array([list(EXPERTS)] * 3)
    return _assigned(expert_matching(a, b), lambda layer, e, f: _reached(a, b, layer, e, f))


def _named(a: Plain, b: Plain, layer, matching):
    """For each token the experts of a, and those of b under the numbers of a (its own number + 10 for nobody's)."""
    name = {f: e for e, f in enumerate(partners(a, b, matching)[layer]) if f != NOBODY}
    return [(set(a.chosen[layer, t]), {name.get(f, f + 10) for f in b.chosen[layer, t]}) for t in a.tokens], name


def routing_agreement(a: Plain, b: Plain, matching="co-selection"):
    def jaccard(layer):
        both, name = _named(a, b, layer, matching)
        return np.mean([len(s & m) / len(s | m) for s, m in both]) if name else np.nan

    return by_layer(jaccard)


def _arc(p, q, name):
    """Twice the angle between the roots of two distributions, by its chord; what nobody's partner does is apart."""
    u, v = np.zeros(12), np.zeros(12)
    for e in EXPERTS:
        u[e] = math.sqrt(p[e])
        v[name.get(e, e + 6)] = math.sqrt(q[e])
    return 4 * math.asin(min(1.0, math.dist(u, v) / 2))


def routing_distance(a: Plain, b: Plain, matching="co-selection"):
    def distance(layer):
        _, name = _named(a, b, layer, matching)
        p, q = (w.counts[layer] / w.counts[layer].sum() for w in (a, b))
        return _arc(p, q, name) if name else np.nan

    return by_layer(distance)


def prompt_difference(a: Plain, b: Plain, matching="co-selection"):
    """Prompt by layer."""

    def distances(layer):
        _, name = _named(a, b, layer, matching)
        return [_arc(a.shares[layer, p], b.shares[layer, p], name) if name else np.nan for p in a.prompts]

    return by_layer(distances).T


def load_difference(a: Plain, b: Plain):
    return expert_load(b) - expert_load(a)


def violation_difference(a: Plain, b: Plain):
    return load_violation(b) - load_violation(a)


def entropy_difference(a: Plain, b: Plain):
    return load_entropy(b) - load_entropy(a)


def effect_difference(a: Plain, b: Plain):
    return signature_effect(b) - signature_effect(a)


def router_saturation(a: Plain, b: Plain):
    """Share of the last step's experts that a token has at either step."""
    return np.array([[(w.taken[i] * b.taken[i]).sum(-1).mean() / CHOSEN for i in LAYERS] for w in (a, b)])


def _centred(rows):
    return rows - rows.mean(1, keepdims=True)


def router_drift(a: Plain, b: Plain):
    """Mean of 1 - cos of centred rows, of those that have a direction."""
    u, v = _centred(a.rows), _centred(b.rows)

    def mean(layer):
        found = [1 - cosine(u[layer, e], v[layer, e]) for e in EXPERTS]
        return np.mean(known) if (known := [d for d in found if not np.isnan(d)]) else np.nan

    return by_layer(mean)


def router_row_difference(a: Plain, b: Plain):
    """1 - cos of an expert's centred row and that of its partner by these rows."""
    u, v = _centred(a.rows), _centred(b.rows)
    likeness, bound = table(lambda i, e, f: cosine(u[i, e], v[i, f])), _direction_reached()
    to = _assigned(likeness, lambda layer, e, f: bound)
    return by_expert(lambda i, e: np.nan if to[i, e] == NOBODY else 1 - likeness[i, e, to[i, e]])


def jacobian_drift(a: Plain, b: Plain, matching="co-selection"):
    """1 - cos of mean Jacobians of an expert and its partner by co-selection."""
    to, one, other = partners(a, b, matching), a.jacobians.mean(2), b.jacobians.mean(2)
    return by_expert(lambda i, e: np.nan if to[i, e] == NOBODY else 1 - cosine(one[i, e], other[i, to[i, e]]))


def subspace_drift(a: Plain, b: Plain, matching="co-selection"):
    """Geodesic distance of the input subspaces of an expert and its partner, from as many rows of all of both."""
    to, n = partners(a, b, matching), smallest(a, b)

    def number(i, e):
        return np.nan if to[i, e] == NOBODY else math.hypot(*angles(axes(a, i, e, n), axes(b, i, to[i, e], n)))

    return by_expert(number)


def centroid_trajectory(a: Plain, b: Plain):
    return np.linalg.norm(centroids(b) - centroids(a), axis=-1)


def _in_one_frame(a, b):
    """Layer by step by expert by coordinate."""
    return np.array([shadow(np.concatenate([a[i], b[i]])).reshape(2, 6, 2) for i in LAYERS])


def centroid_map(a: Plain, b: Plain):
    return _in_one_frame(centroids(a), centroids(b))


def router_row_map(a: Plain, b: Plain):
    return _in_one_frame(_centred(a.rows), _centred(b.rows))


READINGS = {
    reading.__name__: reading
    for reading in (
        expert_matching,
        routing_agreement,
        routing_distance,
        prompt_difference,
        load_difference,
        violation_difference,
        entropy_difference,
        effect_difference,
        router_saturation,
        router_drift,
        router_row_difference,
        jacobian_drift,
        subspace_drift,
        centroid_trajectory,
        centroid_map,
        router_row_map,
    )
}
