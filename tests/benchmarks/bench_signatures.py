"""Signature similarity against scipy's pdist: layer by layer as one would write it, and at its own best in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform

from analysis.measures.signature_similarity import signature_similarity
from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State
from tests.benchmarks.case import Case, Race

PROMPTS, LAYERS, EXPERTS, TOP_K, TOKENS = 2000, 16, 64, 8, 200


def counts(prompts: int = PROMPTS) -> State:
    """Random loads of OLMoE's size: 16 layers of 64 experts, signatures of 1,024 numbers."""
    generator = torch.Generator().manual_seed(0)
    rates = torch.rand(prompts, LAYERS, EXPERTS, generator=generator) * 2 * TOKENS * TOP_K / EXPERTS
    selected = torch.poisson(rates, generator=generator).long()
    ids = tuple(f"p{i}" for i in range(prompts))
    return State(
        "prompt_counts",
        Shape(tuple(map(str, range(LAYERS))), EXPERTS, TOP_K, 16, 16),
        Prompts(ids, tuple(map(text_digest, ids)), ("none",) * prompts),
        {
            "selected": selected,
            "served": selected,
            "weights": selected.double() / TOP_K,
            "tokens": torch.full((prompts,), TOKENS),
        },
    )


def by_pdist(selected: np.ndarray) -> np.ndarray:
    """Mean over layers of 1 - cosine distance."""
    total = sum(squareform(pdist(selected[:, layer].astype(np.float64), "cosine")) for layer in range(LAYERS))
    return 1 - np.asarray(total) / LAYERS


def close(mine: Any, theirs: Any) -> None:
    """Both in float64; 64 products and 16 layers of rounding apart."""
    assert np.allclose(mine.values.numpy(), theirs, rtol=0, atol=1e-12)


def similarity() -> Race:
    """All pairs of prompts."""
    state = counts()
    selected = state["selected"].numpy()
    return Race(lambda: signature_similarity.function(state), lambda: by_pdist(selected), close)


def at_best() -> Race:
    """The mean of per-layer cosines is one cosine of signatures scaled per layer: the form that is kindest to pdist."""
    state = counts(10_000)

    def theirs() -> np.ndarray:
        scaled = state["selected"].double()
        scaled = (scaled / scaled.norm(dim=-1, keepdim=True)).flatten(1).numpy()
        return pdist(scaled, "cosine")

    def same(mine: Any, distances: np.ndarray) -> None:
        upper = np.triu_indices(10_000, 1)
        assert np.allclose(1 - mine.values.numpy()[upper], distances, rtol=0, atol=1e-12)

    return Race(lambda: signature_similarity.function(state), theirs, same)


CASES = (
    Case("signature similarity, 2,000 prompts x 1,024", "scipy pdist, cosine, layer by layer", 2.0, similarity, 3),
    Case("10,000 signatures x 1,024, float64", "scipy pdist, cosine, one call", 8.0, at_best, 3),
)
