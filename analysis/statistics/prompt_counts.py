"""Per prompt, layer and expert: how often it was selected and served, and with how much weight."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.slots import RouteBatch
from analysis.statistic import Spec, statistic


@statistic(
    needs=("routes",),
    arrays={
        "selected": Spec(("prompt", "layer", "expert"), torch.int64),
        "served": Spec(("prompt", "layer", "expert"), torch.int64),
        "weights": Spec(("prompt", "layer", "expert"), torch.float64),
        "tokens": Spec(("prompt",), torch.int64),
    },
)
def prompt_counts(batch: RouteBatch) -> dict[str, Tensor]:
    """Counts of (token, slot) pairs per prompt, layer and expert, and sums of combine weights.

    Identity experts (index >= E) count nowhere.

    Returns:
        `selected` and `served` pairs, 0 to the prompt's tokens; `weights` sums over served pairs; `tokens`, each once.

    Source:
        Ours: everything about loads and signatures follows from counts kept per prompt.
    """
    prompts, layers, experts = len(batch.prompts), len(batch.shape.layers), batch.shape.experts
    cell = batch.keys.prompt[None, :, None] * layers + torch.arange(layers, device=batch.indices.device)[:, None, None]
    real = batch.indices < experts
    flat = (cell * experts + batch.indices)[real]
    served = batch.served[real]

    def total(cells: Tensor, values: Tensor | None = None) -> Tensor:
        counted = torch.bincount(cells, values, minlength=prompts * layers * experts).view(prompts, layers, experts)
        return counted if values is None else counted.to(values.dtype)  # of nothing at all, bincount makes integers

    return {
        "selected": total(flat),
        "served": total(flat[served]),
        "weights": total(flat[served], batch.weights[real][served].double()),
        "tokens": torch.bincount(batch.keys.prompt, minlength=prompts),
    }
