"""Sigmoid top-k balanced by the auxiliary loss.

Sigmoids over their sum stand for the probabilities, as in Megatron and ERNIE.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig

from analysis.lab.balancing import Scope
from analysis.lab.router import SigmoidTopKRouter, scoped_balance


class SigmoidAuxRouter(SigmoidTopKRouter):
    """Sigmoid top-k with a balancing loss; its gradient, unlike softmax's, can move the mean row."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.coefficient: float = config.router_aux_loss_coef
        self.scope: Scope = config.router_aux_scope

    def auxiliary_loss(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"], sequences: int = 1
    ) -> Float[Tensor, ""]:
        """Coefficient times E sum_i f_i P_i, P the mean over tokens of the sigmoids over their sum."""
        probabilities = F.normalize(logits.to(torch.float32).sigmoid(), p=1, dim=-1)
        balance = scoped_balance(self, probabilities, index, self.scope, sequences)
        return self.coefficient * balance + super().auxiliary_loss(logits, index)
