"""What every router of the lab keeps to: three outputs a token, and one state update an optimiser step.

The triple is that of transformers 5, so whatever watches an OLMoE router watches these unaltered. State that no
gradient moves (selection biases, centroids) changes in `update` alone, from sums that `forward` gathered while
training: gradient accumulation needs no special case, and evaluation can change nothing. Where several processes share
a batch, those sums are taken over all of them (`across`), so that the number of processes changes no state.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.configuration_utils import PreTrainedConfig

from analysis.lab.balancing import wide, z_loss


def alone(gathered: Tensor) -> Tensor:
    """The sum over processes where there is one.

    Returns:
        What it was given.

    Source:
        Ours.
    """
    return gathered


class Router(nn.Module):
    """Chooses experts for tokens; a subclass says how scores arise and how they mix."""

    weight: Tensor  # [expert, model]: learned rows, or centroids; either way what an expert listens for
    drawn: ClassVar[tuple[str, ...]] = ("weight",)  # tensors that start as random numbers; the others keep their start
    serves_all: ClassVar[bool] = False  # whether a token has a slot for every expert, whatever its weight
    options: ClassVar[tuple[str, ...]] = ("router_z_loss_coef",)  # fields of the config that this very class reads
    unread: ClassVar[tuple[str, ...]] = ()  # those of its bases that change nothing here

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.num_experts: int = config.num_experts
        self.top_k: int = config.num_experts_per_tok
        self.hidden_dim: int = config.hidden_size
        self.z_coefficient: float = config.router_z_loss_coef
        # Plain attributes, not buffers: they live from one forward to the next update and belong in no checkpoint.
        self.counts: Tensor | None = None
        self.across: Callable[[Tensor], Tensor] = alone
        self.token_ids: Tensor | None = None
        self.real_tokens: Tensor | None = None  # the attention mask: what of it is 0 is padding

    def forward(
        self, hidden_states: Float[Tensor, "*tokens model"]
    ) -> tuple[Float[Tensor, "token expert"], Float[Tensor, "token slot"], Int[Tensor, "token slot"]]:
        """Logits of all experts, mixing weights and indices of the chosen ones."""
        given = hidden_states.reshape(-1, self.hidden_dim)
        hidden = given.to(self.weight.dtype)  # in a model of bf16 scores stay in the precision of the rows
        logits = self.logits(hidden)
        with torch.no_grad():
            index = self.select(logits)
        weights = self.mixing_weights(logits, index).to(given.dtype)
        if self.training:
            with torch.no_grad():
                self.gather(*self.kept(hidden, index, weights))
        return logits, weights, index

    def real(self, tokens: int) -> Bool[Tensor, " token"]:
        """Which tokens of a pass are no padding: all of them where no mask fits; of a cached one the mask's last."""
        mask, device = self.real_tokens, self.weight.device
        if mask is None or tokens % len(mask) or mask.numel() < tokens:
            return torch.ones(tokens, dtype=torch.bool, device=device)
        return mask[:, -(tokens // len(mask)) :].flatten().bool().to(device)

    def kept(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Each of these without the rows of padding."""
        if self.real_tokens is None:
            return rows
        real = self.real(len(rows[0]))
        return tuple(each[real] for each in rows)

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

    def gather(
        self,
        hidden: Float[Tensor, "token model"],
        index: Int[Tensor, "token slot"],
        weights: Float[Tensor, "token slot"],
    ) -> None:
        """Add this batch to the sums that the next `update` reads."""
        counts = torch.bincount(index.reshape(-1), minlength=self.num_experts)
        self.counts = counts if self.counts is None else self.counts + counts

    def auxiliary_loss(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"], sequences: int = 1
    ) -> Float[Tensor, ""]:
        """This layer's addition to the training loss; zero unless the router balances by gradient or is told to.

        The tokens are `sequences` of equal length, one after the other, those of the last pass: its padding is left
        out.
        """
        return self.z_coefficient * z_loss(*self.kept(logits)) if self.z_coefficient else logits.new_zeros(())

    @torch.no_grad()
    def update(self) -> None:
        """Apply and forget the gathered sums; call once an optimiser step."""
        self.counts = None

    @torch.no_grad()
    def seed(self, hidden: Float[Tensor, "token model"], generator: torch.Generator) -> None:
        """Start from tokens of the first batch, where the router needs it."""


class LearnedRouter(Router):
    """Learned rows; each expert's score from its logit; the weights of the chosen sum to one unless told otherwise."""

    options: ClassVar[tuple[str, ...]] = ("norm_topk_prob",)

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.renormalise: bool = config.norm_topk_prob
        self.weight = nn.Parameter(torch.zeros(self.num_experts, self.hidden_dim))

    def scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """What weights, balancing losses and biases are made of, in float32 or wider."""
        raise NotImplementedError

    def probabilities(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """The scores, summing to one over the experts."""
        return F.normalize(self.scores(logits), p=1, dim=-1)


class SoftmaxTopKRouter(LearnedRouter):
    """Scores are the softmax over the experts."""

    def scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """They sum to one, so that no row's gradient is free of the others'."""
        return logits.softmax(-1, dtype=wide(logits))

    def probabilities(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """The scores as they are."""
        return self.scores(logits)

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """Softmax over the chosen (equal to the renormalised softmax over all), or the softmax over all as it is."""
        if self.renormalise:
            return logits.gather(-1, index).softmax(-1, dtype=wide(logits))
        return self.scores(logits).gather(-1, index)


class SigmoidTopKRouter(LearnedRouter):
    """Each expert's score is the sigmoid of its own logit, so that no expert's weight lowers another's.

    As in DeepSeek-V3 (arXiv 2412.19437), without its groups.
    """

    def scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """0 to 1 each."""
        return logits.to(wide(logits)).sigmoid()

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """Sigmoids of the chosen, over their sum or as they are."""
        chosen = self.scores(logits.gather(-1, index))
        return F.normalize(chosen, p=1, dim=-1) if self.renormalise else chosen
