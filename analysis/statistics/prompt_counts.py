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
    counted = real & batch.served
    flat = cell * experts + batch.indices

    def total(which: Tensor, values: Tensor | None = None) -> Tensor:
        # Taking everything out by a mask costs as much as counting it.
        whole = bool(which.all())
        cells, given = (t if t is None else t.flatten() if whole else t[which] for t in (flat, values))
        assert cells is not None
        found = torch.bincount(cells, given, minlength=prompts * layers * experts).view(prompts, layers, experts)
        return found if values is None else found.to(values.dtype)  # of nothing at all, bincount makes integers

    selected = total(real)
    return {
        "selected": selected,
        "served": selected.clone() if torch.equal(real, counted) else total(counted),
        "weights": total(counted, batch.weights.double()),
        "tokens": torch.bincount(batch.keys.prompt, minlength=prompts),
    }
