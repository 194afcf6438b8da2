"""A sample of common tokens: every expert's score, and how every expert's gate answers, chosen or not."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.common_tokens import common_tokens
from analysis.gate_activity import ACTIVITIES, gate_activity
from analysis.precision import working_dtype
from analysis.sampling import ROWS, bottom, rows_at
from analysis.slots import LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

_CELL = ("layer", ROWS)


@statistic(
    needs=("experts",),
    arrays={
        "hash": Spec(_CELL, torch.int64, "sample"),
        "block": Spec(_CELL, torch.int64, "sample"),
        "logits": Spec((*_CELL, "expert"), torch.float32, "sample", routed=False),
        "probabilities": Spec((*_CELL, "expert"), torch.float32, "sample", routed=False),
        "selected": Spec((*_CELL, "expert"), torch.int8, "sample", routed=False),
        "activity": Spec((*_CELL, "expert", len(ACTIVITIES)), torch.float32, "sample", routed=False),
        "size": Spec(_CELL, torch.float32, "sample"),
    },
)
def score_gate_tokens(batch: LayerBatch) -> dict[str, Tensor]:
    """Of the common tokens, the 256 of lowest hash: all logits, probabilities, choices and gate activities, and |x|.

    Returns:
        As `score_gate_pairs`, with all experts; `selected` is 1 where the router chose the expert, else 0.

    Source:
        Ours: scores of one expert against the gates of the others are the control that a correlation needs.
    """
    assert batch.experts is not None
    common, hashes = common_tokens(batch)
    places = bottom(hashes, torch.zeros_like(hashes), 1, ROWS)
    rows = common[places[places >= 0]]
    x, answers = batch.expert_input[rows], []
    for expert in batch.experts:
        expert = expert.to(working_dtype(expert.up))
        answers.append(gate_activity(expert, *expert.preactivations(x.to(expert.up.dtype))))
    selected = torch.zeros(len(rows), batch.shape.experts + 1, dtype=torch.int8, device=x.device)
    selected.scatter_(1, batch.indices[rows].clamp(max=batch.shape.experts).long(), 1)
    found = {
        "logits": batch.logits[rows].float(),
        "probabilities": batch.probabilities[rows].float(),
        "selected": selected[:, :-1].contiguous(),
        "activity": torch.stack(answers, 1).float(),
        "size": x.double().norm(dim=-1).float(),
    }
    place = torch.where(places >= 0, torch.arange(ROWS, device=x.device), -1)
    every = {name: rows_at(values, place, -1 if name == "selected" else torch.nan) for name, values in found.items()}
    every["hash"] = rows_at(hashes, places, torch.iinfo(torch.int64).max)
    every["block"] = rows_at(block_of_token(batch.prompts, batch.keys)[common], places, -1)
    return every
