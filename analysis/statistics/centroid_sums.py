"""Per block, layer and expert: the sum of the tokens it served, plain and by weight; of all tokens beside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

_CELL = ("block", "layer", "expert")


@statistic(
    needs=("layers",),
    arrays={
        "served": Spec(_CELL, torch.int64),
        "weight": Spec(_CELL),
        "input": Spec((*_CELL, "model")),
        "weighted_input": Spec((*_CELL, "model")),
        "seen": Spec(("block", "layer"), torch.int64),
        "seen_input": Spec(("block", "layer", "model")),
    },
)
def centroid_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums of x and of g x over served tokens, with n and sum of g; and of x over all tokens of the layer.

    x is the router's input: the space in which router rows and tokens meet.

    Returns:
        Counts of tokens; sums in units of the hidden state.

    Source:
        Centroids of routed tokens: Ahrac et al. 2026, arXiv 2605.12476; by weight and against all tokens: ours.
    """
    experts = batch.shape.experts
    counted = batch.served & (batch.indices < experts)
    x, block = batch.router_input.double(), block_of_token(batch.prompts, batch.keys)
    # A column of its own takes what was not counted, and is cut off.
    place = torch.where(counted, batch.indices, experts)
    columns = torch.zeros(2, len(x), experts + 1, dtype=torch.float64, device=x.device)
    columns[0].scatter_add_(1, place, counted.double())
    columns[1].scatter_add_(1, place, batch.weights.double() * counted)
    columns = columns[..., :experts]
    inside = F.one_hot(block, BLOCKS).double()
    inputs = torch.zeros(2, BLOCKS, experts, batch.shape.model, dtype=torch.float64, device=x.device)
    for each in block.unique().tolist():
        rows = block == each
        inputs[:, each] = columns[:, rows].mT @ x[rows]
    counts = inside.mT @ columns
    layer = {
        "served": counts[0].round().long(),
        "weight": counts[1],
        "input": inputs[0],
        "weighted_input": inputs[1],
        "seen": torch.bincount(block, minlength=BLOCKS),
        "seen_input": inside.mT @ x,
    }
    return {name: array.unsqueeze(1) for name, array in layer.items()}
