"""Sigmoid top-k balanced by a bias that only selection sees: DeepSeek-V3's, without its groups (arXiv 2412.19437)."""

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedConfig

from analysis.lab.balancing import BiasRule, bias_step
from analysis.lab.router import SigmoidTopKRouter


class SigmoidFreeRouter(SigmoidTopKRouter):
    """Selects by sigmoid plus bias, mixes by the sigmoids alone."""

    e_score_correction_bias: Tensor

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.speed: float = config.router_bias_update_speed
        self.rule: BiasRule = config.router_bias_rule
        self.register_buffer("e_score_correction_bias", torch.zeros(self.num_experts))

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """Sigmoid plus the bias, in its unit."""
        return logits.float().sigmoid() + self.e_score_correction_bias

    @torch.no_grad()
    def update(self) -> None:
        """Move each bias by what its expert lacks."""
        if self.counts is not None:
            self.e_score_correction_bias += bias_step(self.counts, self.speed, self.rule)
        super().update()
