"""Hash routing: a token's id alone decides, by a table drawn once (Roller et al. 2021, arXiv 2106.04426).

The k experts of an id are distinct and weigh the same. What is balanced is ids, not tokens: frequent ids make loads
uneven, and nothing mends it. There are no rows to listen with, so `weight` stays 0.
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from analysis.errors import GeometryError
from analysis.lab.router import Router

SEED = 0  # of the table, the same in every layer and run: the lookup is the router


class HashRouter(Router):
    """Looks up the experts of each token's id; the model says which ids they are before it runs its layers."""

    table: Tensor
    drawn: ClassVar[tuple[str, ...]] = ()
    unread: ClassVar[tuple[str, ...]] = ("router_z_loss_coef",)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        generator = torch.Generator().manual_seed(SEED)
        drawn = torch.rand(config.vocab_size, self.num_experts, generator=generator).topk(self.top_k).indices
        self.register_buffer("table", drawn)
        self.register_buffer("weight", torch.zeros(self.num_experts, self.hidden_dim))

    def logits(self, hidden: Float[Tensor, "token model"]) -> Float[Tensor, "token expert"]:
        """1/k for the experts of the token's id, 0 for the others: probabilities already."""
        chosen = self._looked_up(len(hidden))
        return hidden.new_zeros(len(hidden), self.num_experts).scatter_(1, chosen, 1 / self.top_k)

    def select(self, logits: Float[Tensor, "token expert"]) -> Int[Tensor, "token slot"]:
        """The table's row."""
        return self._looked_up(len(logits))

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """1/k each."""
        return logits.gather(-1, index)

    def _looked_up(self, tokens: int) -> Int[Tensor, "token slot"]:
        if self.token_ids is None or self.token_ids.numel() != tokens:
            seen = "none" if self.token_ids is None else f"{self.token_ids.numel()}"
            raise GeometryError(
                f"a hash router needs the id of each token; {tokens} tokens came with {seen}: call the model with "
                "input_ids, not with inputs_embeds"
            )
        return self.table[self.token_ids.flatten().to(self.table.device)]
