"""Per block of prompts and layer: how many tokens chose both of two experts."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from analysis.ranks import by_rank
from analysis.slots import BLOCKS, RouteBatch, block_of_token
from analysis.statistic import Spec, statistic


@statistic(
    needs=("routes",),
    arrays={
        "both": Spec(("block", "layer", "expert", "expert_b"), torch.int64),
        "adjacent": Spec(("block", "layer", "expert", "expert_b"), torch.int64),
        "tokens": Spec(("block",), torch.int64),
    },
)
def coactivation_counts(batch: RouteBatch) -> dict[str, Tensor]:
    """Tokens that selected both experts, before capacity; the diagonal counts the tokens that selected the one.

    Returns:
        `both`: tokens, 0 to T, symmetric; `adjacent`: those where the two stood next to each other in rank, symmetric,
        zero diagonal; `tokens`: all tokens of the block.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060: all pairs as in its text, neighbours in rank as in its script.
    """
    experts, layers = batch.shape.experts, len(batch.shape.layers)
    blocks = block_of_token(batch.prompts, batch.keys)
    tokens, indices = torch.bincount(blocks, minlength=BLOCKS), batch.indices.long()
    # One column more, cut off again: identity experts (index >= E) pair with nobody. Exact in float32 up to 2^24 tokens
    # a batch.
    chosen = torch.zeros(layers, len(blocks), experts + 1, device=blocks.device)
    chosen = chosen.scatter_(2, indices[:, blocks.argsort()].clamp(max=experts), 1.0)[..., :experts]
    parts = chosen.split(tokens.tolist(), dim=1)
    both = torch.stack([(rows.mT @ rows).long() for rows in parts])
    adjacent = _adjacent(by_rank(indices, batch.weights), blocks, experts)
    return {"both": both, "adjacent": adjacent, "tokens": tokens}


def _adjacent(
    ranked: Int[Tensor, "layer token k"], blocks: Int[Tensor, " token"], experts: int
) -> Int[Tensor, "block layer expert expert_b"]:
    layers, (first, second) = len(ranked), (ranked[..., :-1], ranked[..., 1:])
    cell = blocks[None, :, None] * layers + torch.arange(layers, device=blocks.device)[:, None, None]
    cell = (cell * experts + first) * experts + second
    real = (first < experts) & (second < experts)
    size = (BLOCKS, layers, experts, experts)
    # Taking everything out by a mask costs as much as counting it.
    pairs = cell.flatten() if bool(real.all()) else cell[real]
    one_way = torch.bincount(pairs, minlength=BLOCKS * layers * experts**2).view(size)
    return one_way + one_way.mT
