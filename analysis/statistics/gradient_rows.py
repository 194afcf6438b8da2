"""A sample of tokens with what each would do to the router: its input, scores, and the task's pull on them."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.sampling import bottom, rows_at, token_hash
from analysis.slots import LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

TOKENS = 512
"""Tokens kept per layer."""

_CELL = ("layer", TOKENS)


@statistic(
    needs=("layers", "backward"),
    arrays={
        "hash": Spec(_CELL, torch.int64, "sample"),
        "block": Spec(_CELL, torch.int64, "sample"),
        "input": Spec((*_CELL, "model"), torch.float32, "sample"),
        "logits": Spec((*_CELL, "expert"), torch.float32, "sample", routed=False),
        "probabilities": Spec((*_CELL, "expert"), torch.float32, "sample", routed=False),
        "selected": Spec((*_CELL, "expert"), torch.int8, "sample", routed=False),
        "task": Spec((*_CELL, "expert"), torch.float32, "sample", routed=False),
    },
)
def gradient_rows(batch: LayerBatch) -> dict[str, Tensor]:
    """Of all tokens, the 512 of lowest hash: x, logits, probabilities, choices, and d(cross-entropy)/d(logits).

    Rows, not sums: the balance loss depends on the loads of all tokens together, so its gradient is not a sum over
    tokens until the loads are known. Gradients of the router's rows are `D' X` of these.

    Returns:
        x in units of the router's input; `task` in nats per logit, for the summed loss of the batch.

    Source:
        D and X: measures of gradient coupling after Ahrac et al. 2026, arXiv 2605.12476; the sample is ours.
    """
    assert batch.task_gradient is not None
    hashes = token_hash(batch.prompts, batch.keys)
    rows = bottom(hashes, torch.zeros_like(hashes), 1, TOKENS)
    experts = batch.shape.experts
    selected = torch.zeros(len(hashes), experts + 1, dtype=torch.int8, device=hashes.device)
    selected.scatter_(1, batch.indices.clamp(max=experts).long(), 1)
    floats = {
        "input": batch.router_input,
        "logits": batch.logits,
        "probabilities": batch.probabilities,
        "task": batch.task_gradient,
    }
    return {
        "hash": rows_at(hashes, rows, torch.iinfo(torch.int64).max),
        "block": rows_at(block_of_token(batch.prompts, batch.keys), rows, -1),
        "selected": rows_at(selected[:, :experts], rows, -1),
        **{name: rows_at(values.float(), rows, torch.nan) for name, values in floats.items()},
    }
