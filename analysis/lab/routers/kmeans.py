"""Parameter-free K-Means: an expert's key is a running mean of the hidden states it served.

Only the outline is published: no learned routing parameter, running means of routed hidden states, cosine assignment,
balancing biases without a gradient. Everything below that outline is a guess of ours and a field of the config:

- `kmeans_ema`: rate of the running mean; with `kmeans_rate` "step" once an optimiser step, with "token" as if it were
  moved by each of its n tokens, by 1 - (1 - rate)^n.
- `kmeans_unit_hidden`: the mean is of unit hidden states, so that long ones do not weigh more.
- `kmeans_members`: whether all k chosen experts learn from a token, or the first alone.
- `kmeans_weighted`: whether a member weighs by its mixing weight in the mean, or all the same.
- `kmeans_centred`: whether a running mean of all hidden states, at the same rate, is taken away first.
- `kmeans_mixing`: weights are the softmax of cosine / `kmeans_temperature` over the "chosen" or over "all", the
  "sigmoid" of it, or each cosine's "share" of the chosen ones' sum, those below 0 counted as 0; bias left out.
- `kmeans_hidden_gradient`: whether the hidden state learns through the cosine in those weights.
- `router_bias_update_speed` and `router_bias_rule`: how the bias moves, in units of cosine.
- start: distinct random tokens of the first batch, of unit length (zeros would tie).
"""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers.configuration_utils import PreTrainedConfig

from analysis.errors import TooFew
from analysis.lab.balanced import BalancedByBias

ALIKE = 0.99  # two candidates for a centroid closer than this count as one token seen twice


class KMeansRouter(BalancedByBias):
    """Nearest centroids by cosine plus a balancing bias; centroids follow what they serve."""

    options: ClassVar[tuple[str, ...]] = (
        "kmeans_ema",
        "kmeans_temperature",
        "kmeans_unit_hidden",
        "kmeans_members",
        "kmeans_hidden_gradient",
        "kmeans_mixing",
        "kmeans_rate",
        "kmeans_weighted",
        "kmeans_centred",
    )

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.ema: float = config.kmeans_ema
        self.unit_hidden: bool = config.kmeans_unit_hidden
        self.members: int = self.top_k if config.kmeans_members == "all" else 1
        self.temperature: float = config.kmeans_temperature
        self.hidden_gradient: bool = config.kmeans_hidden_gradient
        self.mixing: str = config.kmeans_mixing
        self.by_token: bool = config.kmeans_rate == "token"
        self.weighted: bool = config.kmeans_weighted
        # A buffer: saved with the model, seen by no optimiser.
        self.register_buffer("weight", torch.zeros(self.num_experts, self.hidden_dim))
        if config.kmeans_centred:
            self.register_buffer("centre", torch.zeros(self.hidden_dim))
        self.gathered: dict[str, Tensor] = {}  # sums since the last update

    def logits(self, hidden: Float[Tensor, "token model"]) -> Float[Tensor, "token expert"]:
        """Cosine to each centroid over the temperature."""
        hidden = self._from_centre(hidden if self.hidden_gradient else hidden.detach())
        return F.linear(_unit(hidden), _unit(self.weight.float())) / self.temperature

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """Cosine plus bias."""
        return logits * self.temperature + self.e_score_correction_bias

    def mixing_weights(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"]
    ) -> Float[Tensor, "token slot"]:
        """As `kmeans_mixing` says."""
        chosen = logits.gather(-1, index)
        if self.mixing == "chosen":
            return chosen.softmax(-1)
        if self.mixing == "all":
            return logits.softmax(-1).gather(-1, index)
        return chosen.sigmoid() if self.mixing == "sigmoid" else F.normalize(chosen.clamp(min=1e-8), p=1, dim=-1)

    def gather(
        self,
        hidden: Float[Tensor, "token model"],
        index: Int[Tensor, "token slot"],
        weights: Float[Tensor, "token slot"],
    ) -> None:
        """Counts for the bias; members, their weights and hidden sums for the centroids."""
        super().gather(hidden, index, weights)
        points = self._from_centre(hidden)
        points = _unit(points) if self.unit_hidden else points
        first = slice(0, self.members)
        member = torch.zeros(2, len(hidden), self.num_experts, device=hidden.device)
        member[0].scatter_(1, index[:, first], 1.0)
        member[1].scatter_(1, index[:, first], weights[:, first].float() if self.weighted else 1.0)
        sums = {"members": member[0].sum(0), "mass": member[1].sum(0), "hidden": member[1].T @ points}
        sums |= {"all": hidden.float().sum(0), "tokens": torch.tensor(float(len(hidden)), device=hidden.device)}
        self.gathered = {name: self.gathered.get(name, 0) + value for name, value in sums.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move each centroid that served towards the mean it served, and each bias by its rule."""
        if self.gathered:
            seen = {name: self.across(gathered) for name, gathered in self.gathered.items()}
            members, mass = seen["members"], seen["mass"]
            rate = 1 - (1 - self.ema) ** members[:, None] if self.by_token else self.ema
            mean = seen["hidden"] / torch.where(mass > 0, mass, 1)[:, None]
            moved = torch.lerp(self.weight.float(), mean, rate).to(self.weight.dtype)
            self.weight.copy_(torch.where(mass[:, None] > 0, moved, self.weight))
            if (centre := getattr(self, "centre", None)) is not None:
                centre.lerp_(seen["all"] / seen["tokens"], self.ema)
        self.gathered = {}
        super().update()

    @torch.no_grad()
    def seed(self, hidden: Float[Tensor, "token model"], generator: torch.Generator) -> None:
        """Put the centroids on distinct random tokens."""
        hidden = hidden.reshape(-1, self.hidden_dim)
        if (centre := getattr(self, "centre", None)) is not None:
            centre.copy_(hidden.float().mean(0))
        points = _unit(self._from_centre(hidden))
        chosen: list[Tensor] = []
        for token in torch.randperm(len(points), generator=generator).tolist():
            if all(float(points[token] @ other) < ALIKE for other in chosen):
                chosen.append(points[token])
            if len(chosen) == self.num_experts:
                self.weight.copy_(torch.stack(chosen))
                return
        raise TooFew(f"{len(chosen)} distinct tokens in the first batch, but {self.num_experts} centroids to place")

    def _from_centre(self, hidden: Float[Tensor, "token model"]) -> Float[Tensor, "token model"]:
        centre = getattr(self, "centre", None)
        return hidden.float() if centre is None else hidden.float() - centre


def _unit(points: Float[Tensor, "point model"]) -> Float[Tensor, "point model"]:
    return F.normalize(points, dim=-1, eps=1e-8)
