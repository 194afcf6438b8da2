"""The hook: called after each optimiser step, it watches every so many steps and is nowhere in between."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from analysis.cosines import common_mode, off_diagonal, row_cosines
from analysis.errors import GeometryError
from backend.adapters import Unsupported, adapt
from backend.recorder.folder import claim
from backend.recorder.post import Poster
from backend.recorder.record import Record, file_name, whole
from backend.recorder.tally import Tally

log = logging.getLogger(__name__)

FLATTENED = (
    "FSDP of version 1 flattens weights, so that none can be read by layer and nothing is recorded: shard by version 2 "
    "(fsdp_version 2, torch's fully_shard)"
)


class GeometryRecorder:
    """Records what a training run routes, every `every` optimiser steps.

    Args:
        model: Any model that an adapter reads, itself and not DDP's wrapper; sharded by `fully_shard` (FSDP 2) or not.
        every: Steps from one record to the next.
        folder: Where records are written; the run is named by it. `runs/live` if left out.
        to: Address of a running backend to send them to as well. What cannot be sent waits in the folder.
        geometry: Also keep the sum of inputs of each expert and the cosines of router rows.
        first: The step the run stands at, if it goes on from one; later records in its folder are replaced.
        rank: Of this process; from the environment (`RANK`) if left out. Each writes its own records.

    Raises:
        Unsupported: If no adapter reads the model, or FSDP of version 1 has wrapped it; later that is logged.
        FolderTaken: If the folder holds another run.
        GeometryError: If `every` is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        folder: str | Path = "runs/live",
        to: str | None = None,
        geometry: bool = False,
        first: int = 0,
        rank: int | None = None,
    ) -> None:
        if every < 1:
            raise GeometryError(f"every must be 1 or more; got {every}")
        self.folder, self._every, self._step = Path(folder), every, first
        self._geometry, self._rank = geometry, int(os.environ.get("RANK", "0")) if rank is None else rank
        self._model = model
        if self._flattened():
            raise Unsupported(FLATTENED)
        self._anatomy = adapt(model)
        self._tally = Tally(model, self._anatomy, geometry)
        self._run = claim(self.folder, self._about(), first, self._rank)
        self._poster = Poster(self.folder, to) if to else None
        self._arm()

    def step(self) -> None:
        """An optimiser step is done. Never raises for a disk or a backend that fails: training goes on."""
        self._step += 1
        sums = self._tally.stop()
        if sums is not None:
            self._keep(sums)
        self._arm()

    def close(self, seconds: float = 5.0) -> None:
        """Take the hooks off; what waits to be sent has this long. The folder keeps what is not sent."""
        self._tally.stop()
        if self._poster:
            self._poster.close(seconds)

    def _arm(self) -> None:
        if (self._step + 1) % self._every:
            return
        if self._flattened():  # the model was wrapped since
            log.error(FLATTENED)
        else:
            self._tally.start()

    def _flattened(self) -> bool:
        return any(isinstance(part, FullyShardedDataParallel) for part in self._model.modules())

    def _keep(self, sums: dict[str, Tensor]) -> None:
        if not int(sums["passes"].max()):
            log.warning("step %d: no forward pass in training mode was seen, so nothing is recorded", self._step)
            return
        record = Record(self._step, whole(sums, self._rows() if self._geometry else None), self._run)
        target = self.folder / file_name(self._step, self._rank)
        try:
            partial = target.with_suffix(".partial")
            partial.write_bytes(record.to_bytes(self._rank))
            partial.replace(target)
        except OSError as error:
            log.warning("step %d could not be written to %s: %s", self._step, self.folder, error)
            return
        if self._poster:
            self._poster.wake()

    def _rows(self) -> Tensor:
        rows = self._anatomy.weights("router_weight")
        rows = (rows.full_tensor() if isinstance(rows, DTensor) else rows).double()  # of all processes that share it
        cosines = [off_diagonal(row_cosines(rows, form)) for form in ("raw", "centred")]
        return torch.stack(
            [cosines[0].nanmean(-1), cosines[1].square().nanmean(-1).sqrt(), common_mode(rows).flatten()], -1
        )

    def _about(self) -> dict[str, Any]:
        shape = self._anatomy.shape
        return {
            "name": self.folder.name,
            "every": self._every,
            "model_type": self._anatomy.model_type,
            "layers": list(shape.layers),
            "experts": shape.experts,
            "top_k": shape.top_k,
        }
