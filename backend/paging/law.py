"""The block law of a paged model: each layer is held to it while it is in memory, before any prompt goes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from backend.adapters.anatomy import AdapterLies
from backend.adapters.law import Checked, check
from backend.adapters.watch import Extra, Trace, watch
from backend.paging.anatomy import PagedAnatomy
from backend.paging.lockstep import Walk
from backend.paging.skeleton import WHOLE


class Law:
    """The few tokens of the block law, which go through each layer before the prompts do."""

    def __init__(self, anatomy: PagedAnatomy, tokens: Tensor):
        self._anatomy, self._tokens = anatomy, tokens.reshape(1, -1)
        self.checks: list[Checked] = []
        self._traces: list[Trace] = []
        self.walk = Walk(self._forward, self._watched)

    @torch.no_grad()
    def _forward(self) -> None:
        self._anatomy.pager.model(input_ids=self._tokens, use_cache=False)

    def _watched(self, decoder: int) -> AbstractContextManager[Any]:
        inside = tuple(self._anatomy.layers[n] for n in self._anatomy.inside(decoder))
        return self._watching(replace(self._anatomy, layers=inside)) if inside else nullcontext()

    @contextmanager
    def _watching(self, anatomy: PagedAnatomy) -> Iterator[None]:
        rows = torch.arange(self._tokens.numel(), device=self._tokens.device)
        with watch(anatomy, rows, len(rows), Extra(outputs=True)) as self._traces:
            yield

    def heard(self, decoder: int) -> None:
        """Hold the MoE layers of this decoder layer to the law; raises `AdapterLies`."""
        inside = [self._anatomy.layers[n] for n in self._anatomy.inside(decoder)]
        for layer, trace in zip(inside, self._traces, strict=True):
            self.checks.append(check(layer, trace, bool(self._anatomy.shape.shared)))
            if self.checks[-1].keeps_shared != self.checks[0].keeps_shared:
                raise AdapterLies(f"{layer.name} treats its shared expert otherwise than the first layer: {WHOLE}")
        self._traces = []
