"""What every expert of a layer gives for the same few tokens, whether they chose it or not."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.expert import Expert
from analysis.precision import working_dtype
from analysis.sampling import bottom, rows_at, token_hash
from analysis.slots import LayerBatch, block_of_token
from analysis.spec import EMPTY
from analysis.statistic import Spec, statistic

ROWS = 64
"""Tokens that every expert is asked about: E outputs each, so an eighth of what is kept of all tokens."""


@statistic(
    needs=("experts",),
    arrays={
        "hash": Spec(("layer", ROWS), torch.int64, "sample"),
        "block": Spec(("layer", ROWS), torch.int64, "sample"),
        "output": Spec(("layer", ROWS, "expert", "model"), torch.bfloat16, "sample", routed=False),
        "shared": Spec(("layer", ROWS, "model"), torch.bfloat16, "sample"),
    },
)
def expert_rows(batch: LayerBatch) -> dict[str, Tensor]:
    """Of all tokens of a layer, the 64 of lowest hash: the output f_e(x) of every expert, combine weight left out.

    Returns:
        Rows in the order of their hash, in units of the expert output, in bfloat16; `shared` is NaN without a shared
        expert. NaN in empty places.

    Source:
        Ours: experts can be compared on a common set of tokens only (Kornblith et al. 2019, arXiv 1905.00414).
    """
    assert batch.experts is not None
    hashes = token_hash(batch.prompts, batch.keys)
    tokens = bottom(hashes, torch.zeros_like(hashes), 1, ROWS)
    asked = tokens[tokens >= 0]
    x = batch.expert_input[asked]
    outputs = torch.stack([_asked(expert, x) for expert in batch.experts], 1)
    shared = torch.full_like(x, torch.nan).bfloat16() if batch.shared is None else _asked(batch.shared, x)
    place = torch.where(tokens >= 0, torch.arange(ROWS, device=tokens.device), -1)
    return {
        "hash": rows_at(hashes, tokens, EMPTY),
        "block": rows_at(block_of_token(batch.prompts, batch.keys), tokens, -1),
        "output": rows_at(outputs, place, torch.nan),
        "shared": rows_at(shared, place, torch.nan),
    }


def _asked(expert: Expert, x: Tensor) -> Tensor:
    dtype = working_dtype(expert.up)
    return expert.to(dtype)(x.to(dtype)).bfloat16()
