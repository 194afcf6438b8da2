"""Statistics over routing: one matrix product and one bincount against loops over tokens."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from analysis.slots import Prompts, RouteBatch, Shape, TokenKeys, text_digest
from analysis.statistics.coactivation_counts import coactivation_counts
from analysis.statistics.prompt_counts import prompt_counts
from tests.benchmarks.case import Case, Race

LAYERS, TOKENS, EXPERTS, TOP_K, PROMPTS = 4, 8192, 64, 8, 64


def routes() -> RouteBatch:
    """Random routing of OLMoE's size: 64 experts, 8 chosen."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.rand(LAYERS, TOKENS, EXPERTS, generator=generator).topk(TOP_K).indices
    ids = tuple(f"p{i}" for i in range(PROMPTS))
    nothing = torch.zeros(TOKENS, dtype=torch.long)
    prompt = torch.arange(TOKENS) * PROMPTS // TOKENS
    position = torch.arange(TOKENS) % (TOKENS // PROMPTS)
    keys = TokenKeys(prompt, position, *[nothing] * 5, span=torch.zeros(TOKENS, 2, dtype=torch.long))
    return RouteBatch(
        Shape(tuple(map(str, range(LAYERS))), EXPERTS, TOP_K, 16, 16),
        Prompts(ids, tuple(map(text_digest, ids)), ("none",) * PROMPTS),
        keys,
        indices,
        torch.full((LAYERS, TOKENS, TOP_K), 1 / TOP_K),
        torch.ones(LAYERS, TOKENS, TOP_K, dtype=torch.bool),
        torch.zeros(LAYERS, TOKENS),
    )


def pairs_by_loop(batch: RouteBatch) -> Tensor:
    """All pairs in the top-k of each token, counted one by one."""
    both = torch.zeros(LAYERS, EXPERTS, EXPERTS, dtype=torch.int64).numpy()
    for layer, tokens in enumerate(batch.indices.tolist()):
        for chosen in tokens:
            for e in chosen:
                both[layer, e, e] += 1
            for a, b in combinations(chosen, 2):
                both[layer, a, b] += 1
                both[layer, b, a] += 1
    return torch.from_numpy(both)


def counts_by_loop(batch: RouteBatch) -> Tensor:
    """Selections per prompt, layer and expert, counted one by one."""
    selected = torch.zeros(PROMPTS, LAYERS, EXPERTS, dtype=torch.int64).numpy()
    prompts = batch.keys.prompt.tolist()
    for layer, tokens in enumerate(batch.indices.tolist()):
        for prompt, chosen in zip(prompts, tokens, strict=True):
            for e in chosen:
                selected[prompt, layer, e] += 1
    return torch.from_numpy(selected)


def equal(mine: Any, theirs: Any) -> None:
    """Counts are whole numbers: no tolerance."""
    assert torch.equal(mine, theirs)


def coactivation() -> Race:
    """Co-activation of one batch."""
    batch = routes()
    return Race(lambda: coactivation_counts.add(batch)["both"].sum(0), lambda: pairs_by_loop(batch), equal)


def load() -> Race:
    """Loads of one batch."""
    batch = routes()
    return Race(lambda: prompt_counts.add(batch)["selected"], lambda: counts_by_loop(batch), equal)


CASES = (
    Case("co-activation, 4 x 8,192 tokens, 64 experts", "Python loop over the pairs of each token", 5.0, coactivation),
    Case("load per prompt, 4 x 8,192 tokens", "Python loop over the choices of each token", 5.0, load),
)
