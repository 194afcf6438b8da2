"""Per block, layer and expert: the sum of its outputs, and how alike two experts' outputs of one token are."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from analysis.beside import members, parted
from analysis.common_tokens import chunks, common_tokens
from analysis.precision import working_dtype
from analysis.served import served_pairs
from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

_CELL, _BESIDE = ("block", "layer", "expert"), ("block", "layer", "beside")


@statistic(
    needs=("gate", "experts"),
    arrays={
        "served": Spec(_CELL, torch.int64),
        "output": Spec((*_CELL, "model")),
        "common": Spec(("block", "layer"), torch.int64),
        "common_output": Spec((*_CELL, "model"), routed=False),
        "pairs": Spec((*_CELL, "expert_b"), torch.int64, routed=False),
        "cosine": Spec((*_CELL, "expert_b"), routed=False),
        "angular": Spec((*_CELL, "expert_b"), routed=False),
        "shared_common_output": Spec((*_BESIDE, "model")),
        "shared_pairs": Spec((*_BESIDE, "expert"), torch.int64, routed=False),
        "shared_cosine": Spec((*_BESIDE, "expert"), routed=False),
        "shared_angular": Spec((*_BESIDE, "expert"), routed=False),
        "shared_alone": Spec((*_BESIDE, "beside_b"), torch.int64),
    },
)
def output_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums of f_e(x), its combine weight left out, over served tokens and, of every expert, over the common tokens.

    On the common tokens also sums over tokens of the cosine of f_e(x) and f_f(x) and of 1 - angle/pi; `pairs` counts
    the tokens behind them (an output of 0 has no direction). The same of a shared expert with each routed one is in
    `shared_*`; `shared_alone` counts the common tokens on which its output is not 0.

    Returns:
        Counts of tokens; sums in units of the expert output; cosine sums between -pairs and pairs, angular 0 to pairs.

    Source:
        Outputs on all tokens: Chen et al. 2025 (HC-SMoE), arXiv 2410.08589; angular similarity of outputs of the same
        token: Lo et al. 2025, arXiv 2406.18219.
    """
    layer = {**served_outputs(batch), **_of_common(batch)}
    return {name: array.unsqueeze(1) for name, array in layer.items()}


def served_outputs(batch: LayerBatch) -> dict[str, Tensor]:
    """The part over served tokens.

    Down is linear, so activations are summed and projected once per block and expert, not once per token.

    Returns:
        `served` and `output` of one layer, as `output_sums` has them.

    Source:
        Ours.
    """
    assert batch.experts is not None
    experts, hidden = batch.shape.experts, batch.shape.hidden
    served, parts = served_pairs(batch)
    dtype = working_dtype(batch.experts[0].up)
    sums = torch.zeros(BLOCKS * experts, hidden, dtype=torch.float64, device=served.device)
    for cells, gate, up in parts:
        sums.index_add_(0, cells, batch.experts[0].phi(gate, up).double())
    outputs = []
    for index, expert in enumerate(batch.experts):
        exact = expert.down.to(dtype)
        output = F.linear(sums.view(BLOCKS, experts, hidden)[:, index].to(dtype), exact).double()
        if expert.down_bias is not None:
            output = output + served[:, index, None] * expert.down_bias.double()
        outputs.append(output)
    return {"served": served, "output": torch.stack(outputs, 1)}


def _of_common(batch: LayerBatch) -> dict[str, Tensor]:
    every, experts, device = members(batch), batch.shape.experts, batch.expert_input.device
    rows, _ = common_tokens(batch)
    block = block_of_token(batch.prompts, batch.keys)[rows]
    total = torch.zeros(BLOCKS, len(every), batch.shape.model, dtype=torch.float64, device=device)
    pairs = torch.zeros(BLOCKS, len(every), len(every), dtype=torch.int64, device=device)
    cosine, angular = (torch.zeros(pairs.shape, dtype=torch.float64, device=device) for _ in range(2))
    for part in chunks(torch.arange(len(rows), device=device)):
        x, outputs = batch.expert_input[rows[part]], []
        for index, expert in enumerate(every):
            expert = expert.to(working_dtype(expert.up))
            outputs.append(expert(x.to(expert.up.dtype)))
            total[:, index].index_add_(0, block[part], outputs[-1].double())
        both, found = _cosines(torch.stack(outputs, 1))
        pairs.index_add_(0, block[part], both.long())
        cosine.index_add_(0, block[part], found * both)
        angular.index_add_(0, block[part], (1 - found.acos() / math.pi) * both)
    found = {"common": torch.bincount(block, minlength=BLOCKS)}
    found |= {"common_output": total[:, :experts], "shared_common_output": total[:, experts:]}
    for name, table in (("pairs", pairs), ("cosine", cosine), ("angular", angular)):
        found[name], found[f"shared_{name}"], _ = parted(table, experts)
    return found | {"shared_alone": parted(pairs, experts)[2]}


def _cosines(outputs: Float[Tensor, "token expert model"]) -> tuple[Tensor, Float[Tensor, "token expert expert"]]:
    """Which pairs have two directions, and the cosines of all pairs (0 where one has none)."""
    norms = outputs.norm(dim=-1, keepdim=True)
    unit = outputs / norms.masked_fill(norms == 0, 1)
    there = norms[..., 0] > 0
    found = (unit @ unit.mT).double().clamp(-1, 1)
    # Exactly 1: arccos would make half the digits of what rounding leaves.
    found.diagonal(dim1=-2, dim2=-1).fill_(1)
    return there[:, :, None] & there[:, None, :], found
