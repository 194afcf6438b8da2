"""A sample of the tokens each expert served: what went into it, and with which weight it was asked."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.sampling import bottom, rows_at, token_hash
from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.spec import EMPTY
from analysis.statistic import Spec, statistic

ROWS = 160
"""Rows kept per expert, of the width of the model: with 256 an OLMoE's sample alone would take 1.1 of its 2 GB."""

_CELL = ("layer", "expert", ROWS)


@statistic(
    needs=("layers",),
    arrays={
        "hash": Spec(_CELL, torch.int64, "sample"),
        "block": Spec(_CELL, torch.int64, "sample"),
        "weight": Spec(_CELL, torch.float32, "sample"),
        "input": Spec((*_CELL, "model"), torch.bfloat16, "sample"),
        "served": Spec(("block", "layer", "expert"), torch.int64),
        "seen": Spec(("block", "layer"), torch.int64),
    },
)
def routed_rows(batch: LayerBatch) -> dict[str, Tensor]:
    """Of each expert's served tokens, the 160 of lowest hash: expert input x and combine weight g; and of how many.

    `served` counts the tokens of each expert and `seen` those of the layer, so that the tokens that an expert did not
    serve can stand beside its sample as rows of 0.

    Inputs are kept in bfloat16: exact for a model that runs in it, to 3 digits for others, whose subspaces that leaves
    alone. In float32 the sample of an OLMoE would take 1.3 GB.

    Returns:
        Rows in the order of their hash, in units of the hidden state; NaN in empty places. Counts of tokens.

    Source:
        Liu 2026, arXiv 2605.16349, for routed inputs; the sample is ours.
    """
    experts, k = batch.shape.experts, batch.indices.shape[1]
    counted = batch.served & (batch.indices < experts)
    hashes = token_hash(batch.prompts, batch.keys)
    cell = torch.where(counted, batch.indices, -1)
    pairs = bottom(hashes[:, None].expand(-1, k).flatten(), cell.flatten(), experts, ROWS)
    tokens = torch.where(pairs < 0, -1, pairs // k)
    block = block_of_token(batch.prompts, batch.keys)
    place = block[:, None] * experts + batch.indices
    served = torch.bincount(place[counted], minlength=BLOCKS * experts).view(BLOCKS, experts)
    sample = {
        "hash": rows_at(hashes, tokens, EMPTY),
        "block": rows_at(block, tokens, -1),
        "weight": rows_at(batch.weights.float().flatten(), pairs, torch.nan),
        "input": rows_at(batch.expert_input.bfloat16(), tokens, torch.nan),
    }
    counts = {"served": served, "seen": torch.bincount(block, minlength=BLOCKS)}
    return {name: array.unsqueeze(0) for name, array in sample.items()} | {
        name: array.unsqueeze(1) for name, array in counts.items()
    }
