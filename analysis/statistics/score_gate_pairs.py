"""A sample of the tokens each expert served: the score it got from the router, and how its gate answered."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.gate_activity import ACTIVITIES, gate_activity
from analysis.sampling import ROWS, bottom, rows_at, token_hash
from analysis.slots import LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

_CELL = ("layer", "expert", ROWS)
_ROWS = 128  # at a time, so that what is made of them stays in the cache


@statistic(
    needs=("gate", "experts"),
    arrays={
        "hash": Spec(_CELL, torch.int64, "sample"),
        "block": Spec(_CELL, torch.int64, "sample"),
        "logit": Spec(_CELL, torch.float32, "sample"),
        "probability": Spec(_CELL, torch.float32, "sample"),
        "activity": Spec((*_CELL, len(ACTIVITIES)), torch.float32, "sample"),
        "size": Spec(_CELL, torch.float32, "sample"),
    },
)
def score_gate_pairs(batch: LayerBatch) -> dict[str, Tensor]:
    """Of each expert's served tokens, the 256 of lowest hash: logit, probability, gate activity and |x|.

    Returns:
        Logits as the router gives them (NaN if hidden), probabilities, activities in the order of
        `analysis.gate_activity.ACTIVITIES`, `size` the norm of the expert's input.

    Source:
        Ahrac et al. 2026, arXiv 2605.12476, for the pairs; the sample is ours.
    """
    assert batch.experts is not None and batch.up_in is not None
    experts, k = batch.shape.experts, batch.indices.shape[1]
    counted = batch.served & (batch.indices < experts)
    hashes = token_hash(batch.prompts, batch.keys)[:, None].expand_as(batch.indices)
    cell = torch.where(counted, batch.indices, -1)
    pairs = bottom(hashes.flatten(), cell.flatten(), experts, ROWS)
    activity = torch.full((*pairs.shape, len(ACTIVITIES)), torch.nan, device=pairs.device)
    activity[pairs >= 0] = _activities(batch, pairs[pairs >= 0])

    def of_pair(values: Tensor, fill: float | int) -> Tensor:
        return rows_at(values.flatten(), pairs, fill)

    chosen = batch.indices.clamp(max=experts - 1)
    every = {
        "hash": of_pair(hashes, torch.iinfo(torch.int64).max),
        "block": of_pair(block_of_token(batch.prompts, batch.keys)[:, None].expand(-1, k), -1),
        "logit": of_pair(batch.logits.float().gather(1, chosen), torch.nan),
        "probability": of_pair(batch.probabilities.float().gather(1, chosen), torch.nan),
        "activity": activity,
        "size": of_pair(batch.expert_input.double().norm(dim=-1).float()[:, None].expand(-1, k), torch.nan),
    }
    return {name: array.unsqueeze(0) for name, array in every.items()}


def _activities(batch: LayerBatch, kept: Int[Tensor, " pair"]) -> Float[Tensor, "pair activity"]:
    assert batch.experts is not None and batch.up_in is not None
    found = []
    for rows in kept.split(_ROWS):
        gate = None if batch.gate_in is None else batch.gate_in.flatten(0, 1)[rows]
        found.append(gate_activity(batch.experts[0], gate, batch.up_in.flatten(0, 1)[rows]).float())
    return torch.cat(found)
