"""Expert choice: each expert takes its best tokens, as many as every other (Zhou et al. 2022, arXiv 2202.09368).

Loads are equal by construction; tokens differ in how many experts they get, none included. An expert chooses among the
tokens of one sequence, later ones included, so that neither batch nor processes decide, but generation one token at a
time is another model: there every expert takes the token. What is returned has a slot for every expert, of weight 0
where it did not take the token, so readers see it as they see a soft router.
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from analysis.errors import BadKnob
from analysis.lab.router import SoftmaxTopKRouter


class ExpertChoiceRouter(SoftmaxTopKRouter):
    """Softmax scores over the experts; each expert takes its ceil(tokens * k / E) best, k the mean a token gets."""

    serves_all: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("expert_choice_per_token",)
    unread: ClassVar[tuple[str, ...]] = ("norm_topk_prob",)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.per_token: int = config.expert_choice_per_token
        if self.top_k != self.num_experts or not 1 <= self.per_token <= self.num_experts:
            raise BadKnob(
                f"expert choice has a slot for every expert: num_experts_per_tok={self.top_k} must be "
                f"num_experts={self.num_experts}, and expert_choice_per_token={self.per_token} from 1 to it"
            )

    def select(self, logits: Float[Tensor, "token expert"]) -> Int[Tensor, "token slot"]:
        """0 ... E-1 for every token: who took it stands in the weights."""
        return torch.arange(self.num_experts, device=logits.device).repeat(len(logits), 1)

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """The softmax score where the expert took the token, else 0; they sum to no fixed number."""
        scores = self.scores(logits)
        pools = scores.unflatten(0, self._pool_shape(len(logits)))
        real = self.real(len(logits)).unflatten(0, pools.shape[:2])  # padding is never taken and takes nobody's place
        room = (real.sum(1) * self.per_token / self.num_experts).ceil()
        order = pools.masked_fill(~real[..., None], -1.0).argsort(dim=1, descending=True, stable=True)
        taken = real[..., None] & (order.argsort(dim=1) < room[:, None, None])
        return scores * taken.flatten(0, 1)

    def _pool_shape(self, tokens: int) -> tuple[int, int]:
        """Sequences and tokens of each; one sequence, where the model has not said which ids these tokens have."""
        ids = self.token_ids
        if ids is None or ids.dim() != 2 or ids.numel() != tokens:
            return 1, tokens
        return ids.shape[0], ids.shape[1]
