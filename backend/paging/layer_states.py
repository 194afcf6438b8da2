"""States of one layer at a time: grown while the layer is in memory, put away when it leaves, joined at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import safetensors.torch
import torch

from analysis.slots import LayerBatch, Shape
from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.store.arrays import read_state


class LayerStates:
    """The states of all shards of the MoE layers that are in memory, and a folder with those of earlier ones."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._growing: dict[tuple[int, str, int], State] = {}

    def grow(self, shard: int, names: Iterable[str], batch: LayerBatch) -> None:
        """Add a batch, as if its layer were all the layers there are: no array is as large as the whole model's."""
        shape = replace(batch.shape, layers=(batch.shape.layers[batch.layer],))
        alone = replace(batch, shape=shape, layer=0)
        for name in names:
            statistic, key = get_statistic(name), (shard, name, batch.layer)
            state = self._growing.get(key) or statistic.empty(shape)
            self._growing[key] = statistic.grow(state, alone)

    def put_away(self) -> None:
        """The layers leave: their states go to disk."""
        for key, state in self._growing.items():
            about = {"statistic": state.statistic, "shape": asdict(state.shape), "prompts": asdict(state.prompts)}
            tensors = {name: tensor.contiguous() for name, tensor in state.arrays.items()}
            safetensors.torch.save_file(tensors, self._path(*key), {"state": json.dumps(about)})
        self._growing = {}

    def joined(self, shard: int, name: str, shape: Shape) -> State:
        """The state of all layers of the model."""
        specs, layers = get_statistic(name).arrays, len(shape.layers)
        parts = [read_state(self._path(shard, name, layer).read_bytes()) for layer in range(layers)]
        arrays = {
            array: torch.cat([part.arrays[array] for part in parts], spec.axes.index("layer"))
            for array, spec in specs.items()
        }
        return replace(parts[0], shape=shape, arrays=arrays)

    def _path(self, shard: int, name: str, layer: int) -> Path:
        return self._folder / f"state-{shard}-{name}-{layer}.safetensors"
