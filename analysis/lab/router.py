"""What every router of the lab keeps to: three outputs a token, and one state update an optimiser step.

The triple is that of transformers 5, so whatever watches an OLMoE router watches these unaltered. State that no
gradient moves (selection biases, centroids) changes in `update` alone, from sums that `forward` gathered while
training: gradient accumulation needs no special case, and evaluation can change nothing.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig


class Router(nn.Module):
    """Chooses experts for tokens; a subclass says how scores arise and how they mix."""

    weight: Tensor  # [expert, model]: learned rows, or centroids; either way what an expert listens for

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.num_experts: int = config.num_experts
        self.top_k: int = config.num_experts_per_tok
        self.hidden_dim: int = config.hidden_size
        # Plain attributes, not buffers: they live from one forward to the next update and belong in no checkpoint.
        self.counts: Tensor | None = None

    def forward(
        self, hidden_states: Float[Tensor, "*tokens model"]
    ) -> tuple[Float[Tensor, "token expert"], Float[Tensor, "token slot"], Int[Tensor, "token slot"]]:
        """Logits of all experts, mixing weights and indices of the chosen ones."""
        hidden = hidden_states.reshape(-1, self.hidden_dim)
        logits = self.logits(hidden)
        with torch.no_grad():
            index = self.select(logits)
        weights = self.mixing_weights(logits, index).to(hidden.dtype)
        if self.training:
            with torch.no_grad():
                self.gather(hidden, index)
        return logits, weights, index

    def logits(self, hidden: Float[Tensor, "token model"]) -> Float[Tensor, "token expert"]:
        """Score of every expert before any balancing."""
        return F.linear(hidden, self.weight)

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """What the top k are taken of: a balancing bias enters here and nowhere else."""
        return logits

    def select(self, logits: Float[Tensor, "token expert"]) -> Int[Tensor, "token slot"]:
        """Indices of the k best, best first."""
        return self.selection_scores(logits).topk(self.top_k, dim=-1).indices

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """Weights of the chosen experts, from unbiased scores."""
        raise NotImplementedError

    def gather(self, hidden: Float[Tensor, "token model"], index: Int[Tensor, "token slot"]) -> None:
        """Add this batch to the sums that the next `update` reads."""
        counts = torch.bincount(index.reshape(-1), minlength=self.num_experts)
        self.counts = counts if self.counts is None else self.counts + counts

    def auxiliary_loss(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, ""]:
        """This layer's addition to the training loss; zero unless the router balances by gradient."""
        return logits.new_zeros(())

    @torch.no_grad()
    def update(self) -> None:
        """Apply and forget the gathered sums; call once an optimiser step."""
        self.counts = None

    @torch.no_grad()
    def seed(self, hidden: Float[Tensor, "token model"], generator: torch.Generator) -> None:
        """Start from tokens of the first batch, where the router needs it."""


class SoftmaxTopKRouter(Router):
    """Learned rows; softmax over the experts; the weights of the chosen sum to one unless told otherwise."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.renormalise: bool = config.norm_topk_prob
        self.weight = nn.Parameter(torch.zeros(self.num_experts, self.hidden_dim))

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """Softmax over the chosen (equal to the renormalised softmax over all), or the softmax over all as it is."""
        if self.renormalise:
            return logits.gather(-1, index).softmax(-1, dtype=torch.float32)
        return logits.softmax(-1, dtype=torch.float32).gather(-1, index)


def sign_step(counts: Int[Tensor, " expert"], speed: float) -> Float[Tensor, " expert"]:
    """How far each selection bias moves: up by `speed` if the expert served fewer than the mean, down if more.

    Returns:
        -speed, 0 or speed for each expert, in the unit of the selection scores.

    Source:
        arXiv 2408.15664, with sign(0) = 0; the sign convention is that of Megatron (mean minus count).
    """
    counts = counts.to(torch.float32)
    return speed * (counts.mean() - counts).sign()
