"""Softmax top-k over random rows that nothing trains: how much of a geometry needs no learned router."""

import torch
from transformers.configuration_utils import PreTrainedConfig

from analysis.lab.router import SoftmaxTopKRouter


class FrozenRouter(SoftmaxTopKRouter):
    """Rows are a buffer: saved with the model, seen by no optimiser."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        del self.weight
        self.register_buffer("weight", torch.zeros(self.num_experts, self.hidden_dim))
