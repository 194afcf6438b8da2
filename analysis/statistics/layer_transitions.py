"""Per block of prompts: how many tokens went from one expert of a layer to another of the next MoE layer."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.ranks import by_rank
from analysis.slots import BLOCKS, RouteBatch, block_of_token
from analysis.statistic import Spec, statistic

_PAIR = ("block", "layer", "expert", "expert_b")


@statistic(
    needs=("routes",),
    arrays={
        "both": Spec(_PAIR, torch.int64),
        "same_rank": Spec(_PAIR, torch.int64),
        "selected": Spec(("block", "layer", "expert"), torch.int64),
        "tokens": Spec(("block",), torch.int64),
    },
)
def layer_transitions(batch: RouteBatch) -> dict[str, Tensor]:
    """Tokens that selected expert i in a layer and expert j in the next one, before capacity.

    The last layer has no next: its rows are zero. Identity experts (index >= E) count nowhere.

    Returns:
        `both`: tokens, over all k x k pairs; `same_rank`: tokens, over pairs of equal rank only; `selected`: tokens of
        each expert; `tokens`: all tokens of the block.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060; all pairs are ours, equal ranks are what its script pairs.
    """
    experts, layers = batch.shape.experts, len(batch.shape.layers)
    blocks = block_of_token(batch.prompts, batch.keys)
    both = torch.zeros(BLOCKS, layers, experts, experts, dtype=torch.int64, device=blocks.device)
    same, selected = torch.zeros_like(both), torch.zeros_like(both[..., 0])
    ranked = by_rank(batch.indices.long(), batch.weights)
    # Exact in float32 up to 2^24 tokens a batch; one column more, cut off again, for identity experts.
    chosen = torch.zeros(layers, len(blocks), experts + 1, device=blocks.device)
    chosen = chosen.scatter_(2, batch.indices.long().clamp(max=experts), 1.0)[..., :experts]
    for block in blocks.unique().tolist():
        rows = (blocks == block).nonzero()[:, 0]
        here = chosen[:, rows]
        both[block, :-1] = (here[:-1].mT @ here[1:]).long()
        selected[block] = here.sum(1).long()
        for layer in range(layers - 1):
            first, second = (ranked[i].index_select(0, rows).flatten() for i in (layer, layer + 1))
            real = (first < experts) & (second < experts)
            cell = (first * experts + second)[real]
            same[block, layer] = torch.bincount(cell, minlength=experts**2).view(experts, experts)
    return {
        "both": both,
        "same_rank": same,
        "selected": selected,
        "tokens": torch.bincount(blocks, minlength=BLOCKS),
    }
