"""Softmax top-k balanced by the Switch auxiliary loss, a layer at a time.

Convention (three are in use): coefficient * E * sum_i f_i P_i with f_i = selections of i / (k * tokens), P the mean
softmax over all tokens; balanced value 1. `router_aux_scope` says over which tokens f is taken. Layers are summed, not
concatenated as in transformers' own OLMoE, where opposite imbalances of two layers cancel.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedConfig

from analysis.lab.balancing import Scope
from analysis.lab.router import SoftmaxTopKRouter, scoped_balance


class SoftmaxAuxRouter(SoftmaxTopKRouter):
    """Softmax top-k with the Switch load-balancing loss."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.coefficient: float = config.router_aux_loss_coef
        self.scope: Scope = config.router_aux_scope

    def auxiliary_loss(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"], sequences: int = 1
    ) -> Float[Tensor, ""]:
        """Coefficient times E sum_i f_i P_i; f carries no gradient, P does."""
        probabilities = logits.softmax(-1, dtype=torch.float32)
        balance = scoped_balance(self, probabilities, index, self.scope, sequences)
        return self.coefficient * balance + super().auxiliary_loss(logits, index)
