"""Per block, layer and expert: how many tokens of each surface class chose it."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.slots import BLOCKS, TOKEN_CLASSES, RouteBatch, block_of_token
from analysis.statistic import Spec, statistic

_CLASSES = len(TOKEN_CLASSES)


@statistic(
    needs=("routes",),
    arrays={
        "selected": Spec(("block", "layer", "expert", _CLASSES), torch.int64),
        "tokens": Spec(("block", _CLASSES), torch.int64),
    },
)
def token_class_counts(batch: RouteBatch) -> dict[str, Tensor]:
    """Selections per expert by the class of the token (first, digit, punctuation, newline, special, other).

    Returns:
        `selected`: selections, 0 to the tokens of the class; `tokens`: how many tokens of the class there were, each
        counted once.

    Source:
        Ours: the classes are `TOKEN_CLASSES`, so that surface form can be told from topic.
    """
    experts, layers = batch.shape.experts, len(batch.shape.layers)
    block, kind = block_of_token(batch.prompts, batch.keys), batch.keys.token_class.long()
    layer = torch.arange(layers, device=block.device)[:, None, None]
    cell = (block[None, :, None] * layers + layer) * experts + batch.indices
    flat = (cell * _CLASSES + kind[None, :, None])[batch.indices < experts]
    counts = torch.bincount(flat, minlength=BLOCKS * layers * experts * _CLASSES)
    tokens = torch.bincount(block * _CLASSES + kind, minlength=BLOCKS * _CLASSES)
    return {"selected": counts.view(BLOCKS, layers, experts, _CLASSES), "tokens": tokens.view(BLOCKS, _CLASSES)}
