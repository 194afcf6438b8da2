"""Per block, layer and expert: how much it was asked for (g), how much it gave (|f|), how much arrived (g |f|)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

_CELL, _BESIDE = ("block", "layer", "expert"), ("block", "layer", "beside")


@statistic(
    needs=("outputs",),
    arrays={
        "served": Spec(_CELL, torch.int64),
        "weight": Spec(_CELL),
        "norm": Spec(_CELL),
        "norm_squared": Spec(_CELL),
        "weighted_norm": Spec(_CELL),
        "weighted_norm_squared": Spec(_CELL),
        "norm_max": Spec(_CELL, merge="max"),
        "component_max": Spec(_CELL, merge="max"),
        "component_size_max": Spec(_CELL, merge="max"),
        "shared_served": Spec(_BESIDE, torch.int64),
        "shared_weighted_norm": Spec(_BESIDE),
    },
)
def contribution_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums over served (token, slot) pairs of g, |f|, |f|^2, g|f| and g^2|f|^2; the largest |f|, f_j and |f_j|.

    One `LayerBatch` fills one layer; the others stay zero (-inf for a maximum), which merging leaves alone. A shared
    expert serves every token: `shared_*` are how many, and its sum of g|f|.

    Returns:
        Sums in units of the expert output; `norm_max`, `component_max` (the largest component of any output) and
        `component_size_max` (of any size, whatever its sign) are -inf for an expert that served no token.

    Source:
        Ours: moments from which mean contribution, its spread and its share of the layer's output follow for any later
        measure.
    """
    assert batch.output_extremes is not None
    experts, layers = batch.shape.experts, len(batch.shape.layers)
    counted = batch.served & (batch.indices < experts)
    block = block_of_token(batch.prompts, batch.keys)[:, None].expand_as(batch.indices)
    flat = ((block * layers + batch.layer) * experts + batch.indices)[counted]
    g, norm = batch.weights[counted].double(), batch.output_norms[counted].double()
    size = (BLOCKS, layers, experts)

    def total(values: Tensor) -> Tensor:
        cells = torch.zeros(math.prod(size), dtype=values.dtype, device=values.device)
        return cells.index_add_(0, flat, values).view(size)

    def largest(values: Tensor) -> Tensor:
        cells = torch.full((math.prod(size),), -math.inf, dtype=values.dtype, device=values.device)
        return cells.scatter_reduce_(0, flat, values, "amax").view(size)

    least, most = batch.output_extremes[counted].double().unbind(-1)
    return {
        "served": total(torch.ones_like(flat)),
        "weight": total(g),
        "norm": total(norm),
        "norm_squared": total(norm**2),
        "weighted_norm": total(g * norm),
        "weighted_norm_squared": total((g * norm) ** 2),
        "norm_max": largest(norm),
        "component_max": largest(most),
        "component_size_max": largest(torch.maximum(most, -least)),
        **_of_shared(batch),
    }


def _of_shared(batch: LayerBatch) -> dict[str, Tensor]:
    """Over all tokens, since all of them are its own."""
    served = torch.zeros(BLOCKS, len(batch.shape.layers), min(batch.shape.shared, 1), dtype=torch.int64)
    served = served.to(batch.expert_input.device)
    given = served.double()
    if batch.shape.shared:
        assert batch.shared_weight is not None and batch.shared_norms is not None
        block = block_of_token(batch.prompts, batch.keys)
        served[:, batch.layer, 0] = torch.bincount(block, minlength=BLOCKS)
        given[:, batch.layer, 0].index_add_(0, block, (batch.shared_weight.double() * batch.shared_norms.double()))
    return {"shared_served": served, "shared_weighted_norm": given}
