"""A sample of all tokens of a layer, whoever served them: what a dense layer in the same place would see."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.sampling import bottom, rows_at, token_hash
from analysis.slots import LayerBatch, block_of_token
from analysis.spec import EMPTY
from analysis.statistic import Spec, statistic

ROWS = 512
"""Tokens kept of each layer: twice what is kept of an expert, so that chance can be drawn from them."""


@statistic(
    needs=("layers",),
    arrays={
        "hash": Spec(("layer", ROWS), torch.int64, "sample"),
        "block": Spec(("layer", ROWS), torch.int64, "sample"),
        "input": Spec(("layer", ROWS, "model"), torch.bfloat16, "sample"),
        "weight": Spec(("layer", ROWS), torch.float32, "sample"),
    },
)
def common_rows(batch: LayerBatch) -> dict[str, Tensor]:
    """Of all tokens of a layer, the inputs x of the 512 of lowest hash; a shared expert sees the same, at `weight`.

    Returns:
        Rows in the order of their hash, in units of the hidden state, in bfloat16, and weights, 1 for a shared expert
        that is added as it is; NaN in empty places, weights also without a shared expert.

    Source:
        Ours: the control for anything said of an expert's own tokens.
    """
    hashes = token_hash(batch.prompts, batch.keys)
    tokens = bottom(hashes, torch.zeros_like(hashes), 1, ROWS)
    weight = (
        batch.expert_input.new_full((len(hashes),), torch.nan) if batch.shared_weight is None else batch.shared_weight
    )
    return {
        "hash": rows_at(hashes, tokens, EMPTY),
        "block": rows_at(block_of_token(batch.prompts, batch.keys), tokens, -1),
        "input": rows_at(batch.expert_input.bfloat16(), tokens, torch.nan),
        "weight": rows_at(weight.float(), tokens, torch.nan),
    }
