"""Per block, layer and expert: how many tokens of each surface class chose it, by own, next and predicted class."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.slots import BLOCKS, CLASSES_OF, TOKEN_CLASSES, RouteBatch, block_of_token
from analysis.statistic import Spec, statistic

_OF, _CLASSES = len(CLASSES_OF), len(TOKEN_CLASSES)


@statistic(
    needs=("routes",),
    arrays={
        "selected": Spec(("block", "layer", "expert", _OF, _CLASSES), torch.int64),
        "of_class": Spec(("block", _OF, _CLASSES), torch.int64),
        "tokens": Spec(("block",), torch.int64),
    },
)
def token_class_counts(batch: RouteBatch) -> dict[str, Tensor]:
    """Selections per expert by the class (first, digit, punctuation, newline, special, other) of three tokens.

    Returns:
        `selected`: selections by the class of the token itself, of the next and of the predicted one, 0 to the tokens
        of the class; `of_class`: how many tokens of the class there were, each counted once. A token without a next
        one, or whose class is not known, is in none. `tokens`: all of them.

    Source:
        Ours: the classes are `TOKEN_CLASSES`, so that surface form can be told from topic.
    """
    experts, layers = batch.shape.experts, len(batch.shape.layers)
    block, kind = block_of_token(batch.prompts, batch.keys), batch.keys.token_class.long()
    layer = torch.arange(layers, device=block.device)[:, None, None]
    cell, chosen = (block[None, :, None] * layers + layer) * experts + batch.indices, batch.indices < experts
    selected, held = [], []
    for code in kind.unbind(-1):
        known = code >= 0
        flat = (cell * _CLASSES + code[None, :, None])[chosen & known[None, :, None]]
        selected.append(torch.bincount(flat, minlength=BLOCKS * layers * experts * _CLASSES))
        held.append(torch.bincount((block * _CLASSES + code)[known], minlength=BLOCKS * _CLASSES))
    return {
        "selected": torch.stack([each.view(BLOCKS, layers, experts, _CLASSES) for each in selected], 3),
        "of_class": torch.stack([each.view(BLOCKS, _CLASSES) for each in held], 1),
        "tokens": torch.bincount(block, minlength=BLOCKS),
    }
