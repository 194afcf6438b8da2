"""Per block, layer and expert: the slopes of phi, which are all that a mean Jacobian needs to know of the tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from analysis.common_tokens import chunks, common_tokens
from analysis.expert import Expert
from analysis.jacobians import probes
from analysis.precision import working_dtype
from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

PROBES = 8
"""Fixed directions that per-token Jacobians are multiplied by; each common token takes one of them, by its hash."""

_ROWS = 4096
_CELL, _WIDE = ("block", "layer", "expert"), ("block", "layer", "expert", "hidden")


@statistic(
    needs=("gate", "experts"),
    arrays={
        "served": Spec(_CELL, torch.int64),
        "gate": Spec(_WIDE),
        "up": Spec(_WIDE),
        "common": Spec(("block", "layer"), torch.int64),
        "common_gate": Spec(_WIDE, routed=False),
        "common_up": Spec(_WIDE, routed=False),
        "probed": Spec(("block", "layer", PROBES), torch.int64),
        "products": Spec((*_CELL, "expert_b"), routed=False),
    },
)
def slope_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums of d phi / d gate and d phi / d up, over served tokens and, of every expert, over the common tokens.

    On the common tokens also `products`: sums of <J_e(x) v, J_f(x) v> with one probe v per token, whose expectation
    over probes is the sum of <J_e(x), J_f(x)>; `probed` counts the tokens of each probe.

    Returns:
        `served` and `common` count tokens; slopes without unit for a gate like SiLU (`gate` is 0 without one), one
        number per hidden neuron; `products` in squared units of the Jacobian.

    Source:
        Slopes: ours, from the closed form of the mean Jacobian (Liu 2026, arXiv 2605.16349); probes: Hutchinson 1990.
    """
    assert batch.experts is not None and batch.up_in is not None
    layer = {**_of_served(batch), **_of_common(batch)}
    return {name: array.unsqueeze(1) for name, array in layer.items()}


def _of_served(batch: LayerBatch) -> dict[str, Tensor]:
    assert batch.experts is not None and batch.up_in is not None
    experts, hidden = batch.shape.experts, batch.shape.hidden
    pairs = (batch.served & (batch.indices < experts)).flatten().nonzero()[:, 0]
    block = block_of_token(batch.prompts, batch.keys)[:, None].expand_as(batch.indices)
    cell = (block * experts + batch.indices).flatten()[pairs]
    expert, dtype = batch.experts[0], working_dtype(batch.experts[0].up)
    sums = torch.zeros(2, BLOCKS * experts, hidden, dtype=torch.float64, device=cell.device)
    for rows, cells in zip(pairs.split(_ROWS), cell.split(_ROWS), strict=True):
        gate = None if batch.gate_in is None else batch.gate_in.flatten(0, 1)[rows].to(dtype)
        # phi is the same function for every expert of a layer: one call for all of them.
        slopes = expert.slopes_at(gate, batch.up_in.flatten(0, 1)[rows].to(dtype))
        for total, slope in zip(sums, slopes, strict=True):
            if slope is not None:
                total.index_add_(0, cells, slope.double())
    gate_sum, up_sum = sums.view(2, BLOCKS, experts, hidden)
    served = torch.bincount(cell, minlength=BLOCKS * experts).view(BLOCKS, experts)
    return {"served": served, "gate": gate_sum, "up": up_sum}


def _of_common(batch: LayerBatch) -> dict[str, Tensor]:
    assert batch.experts is not None
    experts, hidden, device = batch.shape.experts, batch.shape.hidden, batch.expert_input.device
    rows, hashes = common_tokens(batch)
    probe, block = hashes % PROBES, block_of_token(batch.prompts, batch.keys)[rows]
    sums = torch.zeros(2, BLOCKS, experts, hidden, dtype=torch.float64, device=device)
    products = torch.zeros(BLOCKS, experts, experts, dtype=torch.float64, device=device)
    directions = probes(batch.shape.model, PROBES).to(device)
    for part in chunks(torch.arange(len(rows), device=device)):
        x, images = batch.expert_input[rows[part]], []
        for index, expert in enumerate(batch.experts):
            slopes, image = _slopes_and_image(expert, x, directions[probe[part]])
            images.append(image)
            for total, slope in zip(sums, slopes, strict=True):
                if slope is not None:
                    total[:, index].index_add_(0, block[part], slope.double())
        each = torch.stack(images, 1)
        products.index_add_(0, block[part], (each @ each.mT).double())
    probed = torch.bincount(block * PROBES + probe, minlength=BLOCKS * PROBES).view(BLOCKS, PROBES)
    common = torch.bincount(block, minlength=BLOCKS)
    return {"common": common, "common_gate": sums[0], "common_up": sums[1], "probed": probed, "products": products}


def _slopes_and_image(
    expert: Expert, x: Float[Tensor, "row model"], v: Float[Tensor, "row model"]
) -> tuple[tuple[Float[Tensor, "row hidden"] | None, Float[Tensor, "row hidden"]], Float[Tensor, "row model"]]:
    """The slopes at x, and J(x) v from the same slopes."""
    expert = expert.to(working_dtype(expert.up))
    x, v = x.to(expert.up.dtype), v.to(expert.up.dtype)
    gate, up = expert.slopes_each(x)
    inner = up * F.linear(v, expert.up)
    if gate is not None and expert.gate is not None:
        inner = inner + gate * F.linear(v, expert.gate)
    return (gate, up), F.linear(inner, expert.down)
