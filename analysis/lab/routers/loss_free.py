"""Softmax top-k balanced without a loss: a bias that only selection sees, moved by a rule (arXiv 2408.15664)."""

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedConfig

from analysis.lab.balancing import BiasRule, bias_step
from analysis.lab.router import SoftmaxTopKRouter


class LossFreeRouter(SoftmaxTopKRouter):
    """Selects by softmax score plus bias, mixes by the softmax scores alone."""

    e_score_correction_bias: Tensor

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.speed: float = config.router_bias_update_speed
        self.rule: BiasRule = config.router_bias_rule
        self.register_buffer("e_score_correction_bias", torch.zeros(self.num_experts))

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """Softmax over all experts plus the bias, in probability units."""
        return logits.softmax(-1, dtype=torch.float32) + self.e_score_correction_bias

    @torch.no_grad()
    def update(self) -> None:
        """Move each bias by what its expert lacks."""
        if self.counts is not None:
            self.e_score_correction_bias += bias_step(self.counts, self.speed, self.rule)
        super().update()
