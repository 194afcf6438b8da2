"""Fully soft: every token goes to every expert, weighted by the softmax. Nothing is selected, so nothing is a load."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from analysis.errors import BadKnob
from analysis.lab.balancing import wide
from analysis.lab.router import SoftmaxTopKRouter


class SoftRouter(SoftmaxTopKRouter):
    """All experts for every token, in their own order."""

    serves_all: ClassVar[bool] = True
    unread: ClassVar[tuple[str, ...]] = ("norm_topk_prob",)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        if self.top_k != self.num_experts:
            raise BadKnob(
                f"a soft router serves all: num_experts_per_tok={self.top_k}, but num_experts={self.num_experts}"
            )

    def select(self, logits: Float[Tensor, "token expert"]) -> Int[Tensor, "token slot"]:
        """0 ... E-1 for every token: no ranking, since none is left out."""
        return torch.arange(self.num_experts, device=logits.device).repeat(len(logits), 1)

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """The softmax over all experts."""
        return logits.softmax(-1, dtype=wide(logits))
