"""What experts do to tokens, read from the definitions: outputs of every token, Jacobians by autograd."""

from __future__ import annotations

import numpy as np

from tests.analysis.naive_world import EXPERTS, Plain, bfloat16, by_expert, cosine, table


def _size(w: Plain, layer, e):
    """Sum of g |f| over the tokens that the expert served, and how many they are."""
    tokens, g = w.served(layer, e)
    return sum(g * np.linalg.norm(w.outputs[layer, tokens, e], axis=-1)), len(tokens)


def expert_contribution(w: Plain):
    """Share of the output over share of the load."""

    def number(layer, e):
        (own, n), every = _size(w, layer, e), [_size(w, layer, f) for f in EXPERTS]
        return own / sum(size for size, _ in every) / (n / sum(m for _, m in every)) if n else np.nan

    return by_expert(number)


def expert_saliency(w: Plain):
    """Mean of g |f|, over its mean over the experts that have tokens."""

    def mean(layer, e):
        size, n = _size(w, layer, e)
        return size / n if n else np.nan

    found = by_expert(mean)
    return found / np.nanmean(found, -1, keepdims=True)


def _mean_jacobians(w: Plain, tokens):
    """Over the common tokens, or over those that an expert served."""
    if tokens == "common":
        return w.jacobians.mean(2)
    return by_expert(
        lambda i, e: w.slopes(i, e, own).mean(0) if (own := w.served(i, e)[0]) else np.full((5, 5), np.nan)
    )


def jacobian_alignment(w: Plain, tokens="common"):
    mean = _mean_jacobians(w, tokens)
    return table(lambda i, e, f: cosine(mean[i, e], mean[i, f]))


def jacobian_linear_share(w: Plain):
    """|mean J|^2 over the mean of |J|^2, less what n tokens of a mean of 0 would leave."""

    def share(layer, e):
        of_each = w.jacobians[layer, e]
        s, n = (of_each.mean(0) ** 2).sum() / np.mean([(j**2).sum() for j in of_each]), len(of_each)
        return (s - 1 / n) / (1 - 1 / n)

    return by_expert(share)


def jacobian_spectrum(w: Plain, tokens="common"):
    """Participation ratio of the squared singular values of the mean Jacobian: (tr J'J)^2 / tr (J'J)^2."""
    mean = _mean_jacobians(w, tokens)

    def number(layer, e):
        square = mean[layer, e].T @ mean[layer, e]
        return np.trace(square) ** 2 / np.trace(square @ square)

    return by_expert(number)


def output_similarity(w: Plain):
    """Mean of 1 - angle / pi over the common tokens on which neither answer is 0."""

    def number(layer, e, f):
        if e == f:
            return 1.0
        found = [cosine(w.outputs[layer, t, e], w.outputs[layer, t, f]) for t in w.common]
        angles = [np.arccos(np.clip(c, -1, 1)) for c in found if not np.isnan(c)]
        return np.mean([1 - angle / np.pi for angle in angles]) if angles else np.nan

    return table(number)


def weight_similarity(w: Plain):
    """Cosine of all three matrices, flattened into one vector."""
    whole = [np.concatenate([part[i].reshape(6, -1) for part in (w.gate, w.up, w.down)], -1) for i in range(3)]
    return table(lambda i, e, f: cosine(whole[i][e], whole[i][f]))


def centred_kernel_alignment(w: Plain):
    """Unbiased HSIC of the outputs for the 64 tokens of lowest hash, which are kept in bfloat16."""
    kept = np.argsort(w.hash)[:64]
    n = len(kept)

    def gram(layer, e):
        y = bfloat16(w.outputs[layer, kept, e])
        k = (y - y.mean(0)) @ (y - y.mean(0)).T
        return k - np.diag(np.diag(k))

    def hsic(k, other):
        ones = np.ones(n)
        whole = (ones @ k @ ones) * (ones @ other @ ones) / ((n - 1) * (n - 2))
        return np.trace(k @ other) + whole - 2 * (ones @ k @ other @ ones) / (n - 2)

    grams = by_expert(gram)

    def number(layer, e, f):
        k, other = grams[layer, e], grams[layer, f]
        return hsic(k, other) / np.sqrt(hsic(k, k) * hsic(other, other))

    return table(number)


READINGS = {
    reading.__name__: reading
    for reading in (
        expert_contribution,
        expert_saliency,
        jacobian_alignment,
        jacobian_linear_share,
        jacobian_spectrum,
        output_similarity,
        weight_similarity,
        centred_kernel_alignment,
    )
}
