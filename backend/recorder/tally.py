"""What one training step routed, added up on the model's own device under hooks that live for that step."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from backend.adapters.anatomy import Anatomy, Called, MoeLayer


class Tally:
    """Sums over every forward pass of a step: `start` puts the hooks on, `stop` takes them off and gives the sums.

    Passes in evaluation mode do not count, nor those that gradient checkpointing runs again in the backward pass.
    Padding is left out where the model is called with an attention mask of the batch's own shape.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy, centroids: bool):
        self._model, self._anatomy, self._centroids = model, anatomy, centroids
        self._hooks = ExitStack()
        self._mask: Tensor | None = None
        self._sums: list[dict[str, Tensor]] = []

    def start(self) -> None:
        """Begin a step; nothing is counted twice if one has begun."""
        self.stop()
        self._sums = [self._zeros(layer) for layer in self._anatomy.layers]
        self._hooks.callback(self._model.register_forward_pre_hook(self._seen, with_kwargs=True).remove)
        for layer, sums in zip(self._anatomy.layers, self._sums, strict=True):
            self._hooks.enter_context(layer.listen(self._counter(layer, sums)))

    def stop(self) -> dict[str, Tensor] | None:
        """All layers' sums on the CPU, or None if no step had begun. The hooks are gone, whatever happens."""
        self._hooks.close()
        self._mask = None
        sums, self._sums = self._sums, []
        return {name: torch.stack([each[name].cpu() for each in sums]) for name in sums[0]} if sums else None

    def _zeros(self, layer: MoeLayer) -> dict[str, Tensor]:
        device = layer.weights("down_weight").device
        experts, width, _ = layer.size()
        made = lambda *size, dtype=torch.float64: torch.zeros(size, dtype=dtype, device=device)  # noqa: E731
        sums = {
            "selected": made(experts + 1, dtype=torch.int64),  # the last: experts that are none, and padding
            "weights": made(experts + 1),
            "tokens": made(dtype=torch.int64),
            "passes": made(dtype=torch.int64),
            "violation": made(),
        }
        return sums | ({"centroids": made(experts + 1, width, dtype=torch.float32)} if self._centroids else {})

    def _seen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        self._mask = mask.flatten().bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def _counter(self, layer: MoeLayer, sums: dict[str, Tensor]) -> Called:
        experts = layer.size()[0]

        @torch.no_grad()
        def count(x: Tensor, indices: Tensor, weights: Tensor) -> None:
            if not layer.experts.training or torch._C._current_graph_task_id() != -1:
                return
            real = self._mask if self._mask is not None and self._mask.numel() == len(indices) else None
            place = indices.long().clamp(max=experts)
            if real is not None:
                place = torch.where(real.to(place.device)[:, None], place, experts)
            counts = torch.zeros_like(sums["selected"]).scatter_add_(
                0, place.flatten(), torch.ones_like(place).flatten()
            )
            sums["selected"] += counts
            sums["weights"].scatter_add_(0, place.flatten(), weights.double().flatten())
            sums["tokens"] += len(indices) if real is None else real.sum()
            load = counts[:experts].double()
            sums["violation"] += load.max() / load.mean().clamp(min=1e-12) - 1
            sums["passes"] += 1
            if self._centroids:
                for slot in place.unbind(1):
                    sums["centroids"].index_add_(0, slot, x.float())

        return count
