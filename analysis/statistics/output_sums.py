"""Per block, layer and expert: the sum of its outputs, and how alike two experts' outputs of one token are."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from analysis.beside import members, parted
from analysis.common_tokens import chunks, common_tokens
from analysis.expert import Expert
from analysis.precision import working_dtype
from analysis.served import served_pairs
from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

DRAWS = 8
"""Shuffles of output dimensions with which chance is drawn."""

_CACHED = 2**18  # numbers of outputs that are shuffled at a time: they stay in the cache
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
        "drawn_cosine": Spec((*_CELL, "expert_b", DRAWS), routed=False),
        "drawn_angular": Spec((*_CELL, "expert_b", DRAWS), routed=False),
        "shared_common_output": Spec((*_BESIDE, "model")),
        "shared_pairs": Spec((*_BESIDE, "expert"), torch.int64, routed=False),
        "shared_cosine": Spec((*_BESIDE, "expert"), routed=False),
        "shared_angular": Spec((*_BESIDE, "expert"), routed=False),
        "shared_drawn_cosine": Spec((*_BESIDE, "expert", DRAWS), routed=False),
        "shared_drawn_angular": Spec((*_BESIDE, "expert", DRAWS), routed=False),
        "shared_alone": Spec((*_BESIDE, "beside_b"), torch.int64),
    },
)
def output_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums of f_e(x), its combine weight left out, over served tokens and, of every expert, over the common tokens.

    On the common tokens also sums over tokens of the cosine of f_e(x) and f_f(x) and of 1 - angle/pi; `pairs` counts
    the tokens behind them (an output of 0 has no direction). `drawn_*` are the same sums of f_e(x) and f_f(x) after
    each of 8 fixed shuffles of the output dimensions, signs too: what unrelated output directions give on these tokens.
    The same of a shared expert with each routed one is in `shared_*`; `shared_alone` counts the common tokens on which
    its output is not 0.

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


@lru_cache(maxsize=16)
def shuffles(model: int) -> tuple[tuple[int, ...], Float[Tensor, "draw model"]]:
    """The shuffles of output dimensions: a sign for each, then a turn of the circle they stand on by so many places.

    They are the same for all tokens and experts, so that a new numbering of the experts changes nothing; the draws of
    one pair, over which is averaged, are independent.

    Returns:
        Places to turn by, 0 to `model` - 1, and signs of -1 or 1; do not write into them.

    Source:
        Ours. As a matrix, P has E[P_ij P_kl] = 1/d where i = k and j = l and 0 elsewhere. So has a uniformly random
        rotation: a mean of u'Pv over tokens varies as it does between unrelated output directions. A turn is two
        slices, where a free order would copy every output.
    """
    generator = torch.Generator().manual_seed(0)
    turns = torch.randint(0, model, (DRAWS,), generator=generator)
    signs = torch.randint(0, 2, (DRAWS, model), generator=generator).double() * 2 - 1
    return tuple(turns.tolist()), signs


def _of_common(batch: LayerBatch) -> dict[str, Tensor]:
    every, experts, device = members(batch), batch.shape.experts, batch.expert_input.device
    rows, _ = common_tokens(batch)
    block = block_of_token(batch.prompts, batch.keys)[rows]
    total = torch.zeros(BLOCKS, len(every), batch.shape.model, dtype=torch.float64, device=device)
    pairs = torch.zeros(BLOCKS, len(every), len(every), dtype=torch.int64, device=device)
    # The answers themselves first, then those after each shuffle.
    cosine, angular = (torch.zeros(1 + DRAWS, *pairs.shape, dtype=torch.float64, device=device) for _ in range(2))
    for part in chunks(torch.arange(len(rows), device=device)):
        outputs = _outputs(every, batch.expert_input[rows[part]])
        total.index_add_(0, block[part], outputs.double())
        unit, both = _directions(outputs)
        pairs.index_add_(0, block[part], both.long())
        for draw in range(1 + DRAWS):
            found = _shuffled_cosines(unit, draw - 1) if draw else _cosines(unit)
            cosine[draw].index_add_(0, block[part], found * both)
            angular[draw].index_add_(0, block[part], (1 - found.acos() / math.pi) * both)
    found = {"common": torch.bincount(block, minlength=BLOCKS)}
    found |= {"common_output": total[:, :experts], "shared_common_output": total[:, experts:]}
    found["pairs"], found["shared_pairs"], found["shared_alone"] = parted(pairs, experts)
    for name, table in (("cosine", cosine), ("angular", angular)):
        found[name], found[f"shared_{name}"], _ = parted(table[0], experts)
        drawn, beside, _ = parted(table[1:], experts)
        found |= {f"drawn_{name}": drawn.movedim(0, -1), f"shared_drawn_{name}": beside.movedim(0, -1)}
    return found


def _outputs(every: list[Expert], x: Float[Tensor, "token model"]) -> Float[Tensor, "token expert model"]:
    outputs = []
    for expert in every:
        expert = expert.to(working_dtype(expert.up))
        outputs.append(expert(x.to(expert.up.dtype)))
    return torch.stack(outputs, 1)


def _directions(outputs: Float[Tensor, "token expert model"]) -> tuple[Tensor, Bool[Tensor, "token expert expert"]]:
    """Outputs of length 1 (0 where there is none), and which pairs have two directions."""
    norms = outputs.norm(dim=-1, keepdim=True)
    there = norms[..., 0] > 0
    return outputs / norms.masked_fill(norms == 0, 1), there[:, :, None] & there[:, None, :]


def _cosines(unit: Float[Tensor, "token expert model"]) -> Float[Tensor, "token expert expert"]:
    """Cosines of all pairs, 0 where one has no direction."""
    found = (unit @ unit.mT).double().clamp(-1, 1)
    # Exactly 1: arccos would make half the digits of what rounding leaves.
    found.diagonal(dim1=-2, dim2=-1).fill_(1)
    return found


def _shuffled_cosines(unit: Float[Tensor, "token expert model"], draw: int) -> Float[Tensor, "token expert expert"]:
    """The same with the outputs of the second expert of each pair shuffled."""
    model = unit.shape[-1]
    turn, signs = shuffles(model)[0][draw], shuffles(model)[1][draw].to(unit)
    parts = []
    for few in unit.split(max(1, _CACHED // (unit.shape[1] * model))):
        signed = few * signs
        start = few[..., turn:] @ signed[..., : model - turn].mT
        parts.append(start.baddbmm_(few[..., :turn], signed[..., model - turn :].mT))
    return torch.cat(parts).double().clamp(-1, 1)
