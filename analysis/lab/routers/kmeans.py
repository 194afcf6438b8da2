"""Parameter-free K-Means: an expert's key is a running mean of the hidden states it served.

Only the outline is published: no learned routing parameter, running means of routed hidden states, cosine assignment,
balancing biases without a gradient. Everything below that outline is a guess of ours and a field of the config:

- `kmeans_ema`: rate of the running mean, once an optimiser step whatever the number of tokens.
- `kmeans_unit_hidden`: the mean is of unit hidden states, so that long ones do not weigh more.
- `kmeans_members`: whether all k chosen experts learn from a token, or the first alone.
- `kmeans_temperature`: mixing weights are softmax(cosine / temperature) over the chosen, bias left out.
- `kmeans_hidden_gradient`: whether the hidden state learns through the cosine in those weights.
- `router_bias_update_speed`: step of the sign rule, in units of cosine.
- start: distinct random tokens of the first batch, of unit length (zeros would tie).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig

from analysis.errors import TooFew
from analysis.lab.router import Router, sign_step

ALIKE = 0.99  # two candidates for a centroid closer than this count as one token seen twice


class KMeansRouter(Router):
    """Nearest centroids by cosine plus a balancing bias; centroids follow what they serve."""

    e_score_correction_bias: Tensor

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.ema: float = config.kmeans_ema
        self.unit_hidden: bool = config.kmeans_unit_hidden
        self.members: int = self.top_k if config.kmeans_members == "all" else 1
        self.temperature: float = config.kmeans_temperature
        self.hidden_gradient: bool = config.kmeans_hidden_gradient
        self.speed: float = config.router_bias_update_speed
        # Buffers: saved with the model, seen by no optimiser.
        self.register_buffer("weight", torch.zeros(self.num_experts, self.hidden_dim))
        self.register_buffer("e_score_correction_bias", torch.zeros(self.num_experts))
        self.served: Tensor | None = None  # per expert: number of members, and sum of their hidden states
        self.hidden_sum: Tensor | None = None

    def logits(self, hidden: Float[Tensor, "token model"]) -> Float[Tensor, "token expert"]:
        """Cosine to each centroid over the temperature, so that its softmax over the chosen is the mixing weight."""
        hidden = (hidden if self.hidden_gradient else hidden.detach()).float()
        return F.linear(_unit(hidden), _unit(self.weight.float())) / self.temperature

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """Cosine plus bias."""
        return logits * self.temperature + self.e_score_correction_bias

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """Softmax of cosine / temperature over the chosen."""
        return logits.gather(-1, index).softmax(-1)

    def gather(self, hidden: Float[Tensor, "token model"], index: Int[Tensor, "token slot"]) -> None:
        """Counts for the bias; member counts and hidden sums for the centroids."""
        super().gather(hidden, index)
        hidden = hidden.float()
        points = _unit(hidden) if self.unit_hidden else hidden
        member = torch.zeros(len(hidden), self.num_experts, device=hidden.device)
        member.scatter_(1, index[:, : self.members], 1.0)
        served, total = member.sum(0), member.T @ points
        self.served = served if self.served is None else self.served + served
        self.hidden_sum = total if self.hidden_sum is None else self.hidden_sum + total

    @torch.no_grad()
    def update(self) -> None:
        """Move each centroid that served towards the mean it served, and each bias by the sign rule."""
        if self.counts is not None and self.served is not None and self.hidden_sum is not None:
            mean = self.hidden_sum / self.served.clamp(min=1)[:, None]
            moved = torch.lerp(self.weight.float(), mean, self.ema).to(self.weight.dtype)
            self.weight.copy_(torch.where(self.served[:, None] > 0, moved, self.weight))
            self.e_score_correction_bias += sign_step(self.counts, self.speed)
        self.served = self.hidden_sum = None
        super().update()

    @torch.no_grad()
    def seed(self, hidden: Float[Tensor, "token model"], generator: torch.Generator) -> None:
        """Put the centroids on distinct random tokens."""
        points = _unit(hidden.reshape(-1, self.hidden_dim).float())
        chosen: list[Tensor] = []
        for token in torch.randperm(len(points), generator=generator).tolist():
            if all(float(points[token] @ other) < ALIKE for other in chosen):
                chosen.append(points[token])
            if len(chosen) == self.num_experts:
                self.weight.copy_(torch.stack(chosen))
                return
        raise TooFew(f"{len(chosen)} distinct tokens in the first batch, but {self.num_experts} centroids to place")


def _unit(points: Float[Tensor, "point model"]) -> Float[Tensor, "point model"]:
    return F.normalize(points, dim=-1, eps=1e-8)
