"""Per block, layer and expert: the slopes of phi, which are all that a mean Jacobian needs to know of the tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.beside import members, parted
from analysis.common_tokens import chunks, common_tokens
from analysis.expert import Expert
from analysis.precision import working_dtype
from analysis.served import served_pairs
from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic
from analysis.token_jacobians import PAIRS, drawn_pairs, mixed, seen, sketched_energy, token_probes

_ROWS = 128
_CELL, _WIDE = ("block", "layer", "expert"), ("block", "layer", "expert", "hidden")
_BESIDE, _SHARED = ("block", "layer", "beside"), ("block", "layer", "shared")


@statistic(
    needs=("gate", "experts"),
    arrays={
        "served": Spec(_CELL, torch.int64),
        "gate": Spec(_WIDE),
        "up": Spec(_WIDE),
        "common": Spec(("block", "layer"), torch.int64),
        "common_gate": Spec(_WIDE, routed=False),
        "common_up": Spec(_WIDE, routed=False),
        "energy": Spec(_CELL, routed=False),
        "products": Spec((*_CELL, "expert_b"), routed=False),
        "drawn": Spec(("block", "layer", 2, 3, PAIRS)),
        "shared_served": Spec(_BESIDE, torch.int64),
        "shared_gate": Spec(_SHARED),
        "shared_up": Spec(_SHARED),
        "shared_common_gate": Spec(_SHARED),
        "shared_common_up": Spec(_SHARED),
        "shared_products": Spec((*_BESIDE, "expert"), routed=False),
        "shared_energy": Spec(_BESIDE),
        "shared_square": Spec((*_BESIDE, "beside_b")),
        "shared_drawn": Spec(("block", "layer", "beside", 2, 3, PAIRS)),
    },
)
def slope_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums of d phi / d gate and d phi / d up, over served tokens and, of every expert, over the common tokens.

    On the common tokens also `products`: sums of <J_e(x) v, J_f(x) v> with a probe v of each token's own, whose
    expectation over probes is the sum of <J_e(x), J_f(x)>; `drawn`, such products of random pairs of experts of the
    same slopes and probes, in one output dimension of a random down projection (first) or of outputs turned at random
    (second), and both mean squares; and `energy`, sums of |J_e(x)|^2 between fixed directions. A shared expert
    serves every token: its sums are `shared_*`, `shared_products` those with each routed expert.

    Returns:
        `served` and `common` count tokens; slopes without unit for a gate like SiLU (`gate` is 0 without one), one
        number per hidden neuron; `products` and `energy` in squared units of the Jacobian.

    Source:
        Slopes: ours, from the closed form of the mean Jacobian (Liu 2026, arXiv 2605.16349); probes: Hutchinson 1990.
    """
    assert batch.experts is not None and batch.up_in is not None
    layer = {**served_slopes(batch), **_of_common(batch), **_of_shared(batch)}
    return {name: array.unsqueeze(1) for name, array in layer.items()}


def served_slopes(batch: LayerBatch) -> dict[str, Tensor]:
    """The part over served tokens: what it costs does not grow with the number of experts.

    Returns:
        `served`, `gate` and `up` of one layer, as `slope_sums` has them.

    Source:
        Ours.
    """
    assert batch.experts is not None
    experts, hidden = batch.shape.experts, batch.shape.hidden
    served, parts = served_pairs(batch)
    sums = torch.zeros(2, BLOCKS * experts, hidden, dtype=torch.float64, device=served.device)
    for cells, gate, up in parts:
        # phi is the same function for every expert of a layer: one call for all of them.
        for total, slope in zip(sums, batch.experts[0].slopes_at(gate, up), strict=True):
            if slope is not None:
                total.index_add_(0, cells, slope.double())
    gate_sum, up_sum = sums.view(2, BLOCKS, experts, hidden)
    return {"served": served, "gate": gate_sum, "up": up_sum}


def _of_common(batch: LayerBatch) -> dict[str, Tensor]:
    every, experts, device = members(batch), batch.shape.experts, batch.expert_input.device
    rows, hashes = common_tokens(batch)
    block, order = block_of_token(batch.prompts, batch.keys)[rows], _by_size(every[:experts])
    zeros = lambda *size: torch.zeros(*size, dtype=torch.float64, device=device)  # noqa: E731
    sums, shared = zeros(2, BLOCKS, experts, batch.shape.hidden), zeros(2, BLOCKS, batch.shape.shared)
    energy, products = zeros(BLOCKS, len(every)), zeros(BLOCKS, len(every), len(every))
    drawn = zeros(BLOCKS, len(every) - experts + 1, 2, 3, PAIRS)
    for part in chunks(torch.arange(len(rows), device=device)):
        x, images, mixes = batch.expert_input[rows[part]], [], []
        v = token_probes(batch.shape.model, hashes[part])
        for index, expert in enumerate(every):
            exact = expert.to(working_dtype(expert.up))
            found = seen(exact, x.to(exact.up.dtype), v.to(exact.up.dtype))
            images.append(found.image)
            mixes.append(mixed(found, order.index(index) if index < experts else index))
            _add(sums[:, :, index] if index < experts else shared, block[part], found.slopes)
            each = sketched_energy((exact.gate, exact.up, exact.down), found.slopes)
            energy[:, index].index_add_(0, block[part], each)
        image, ranked = torch.stack(images, 1), torch.stack([mixes[index] for index in order], 1)
        products.index_add_(0, block[part], (image @ image.mT).double())
        for place, beside in enumerate([None, *mixes[experts:]]):
            drawn[:, place].index_add_(0, block[part], drawn_pairs(ranked, beside))
    found = {"common": torch.bincount(block, minlength=BLOCKS)}
    found |= {"energy": energy[:, :experts], "shared_energy": energy[:, experts:]}
    found |= {"common_gate": sums[0], "common_up": sums[1]}
    found |= {"shared_common_gate": shared[0], "shared_common_up": shared[1]}
    found |= {"drawn": drawn[:, 0], "shared_drawn": drawn[:, 1:]}
    names = ("products", "shared_products", "shared_square")
    return found | dict(zip(names, parted(products, experts), strict=True))


def _by_size(experts: list[Expert]) -> list[int]:
    """An order in which a new numbering draws the same."""
    return torch.stack([expert.down.float().norm() for expert in experts]).argsort(stable=True).tolist()


def _of_shared(batch: LayerBatch) -> dict[str, Tensor]:
    """Over all tokens, since all of them are its own."""
    block = block_of_token(batch.prompts, batch.keys)
    sums = torch.zeros(2, BLOCKS, batch.shape.shared, dtype=torch.float64, device=block.device)
    beside = members(batch)[batch.shape.experts :]
    for expert in beside:
        exact = expert.to(working_dtype(expert.up))
        for rows in torch.arange(len(block), device=block.device).split(_ROWS):
            _add(sums, block[rows], exact.slopes_each(batch.expert_input[rows].to(exact.up.dtype)))
    served = torch.bincount(block, minlength=BLOCKS)[:, None].expand(-1, len(beside))
    return {"shared_served": served, "shared_gate": sums[0], "shared_up": sums[1]}


def _add(
    sums: Float[Tensor, "two block hidden"],
    block: Int[Tensor, " row"],
    slopes: tuple[Float[Tensor, "row hidden"] | None, Float[Tensor, "row hidden"]],
) -> None:
    for total, slope in zip(sums, slopes, strict=True):
        if slope is not None:
            total.index_add_(0, block, slope.double())
