"""The two ways to balance a router, to be mixed into one: by a loss, or by a bias that only selection sees."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from analysis.lab.balancing import BiasRule, Scope, balance_loss, bias_step
from analysis.lab.router import LearnedRouter, Router


class BalancedByLoss(LearnedRouter):
    """Adds coefficient * E * sum_i f_i P_i to the training loss; f carries no gradient, P does.

    P is the mean probability over tokens, f the share of selections in the tokens that `router_aux_scope` names: each
    sequence's own (mean over them), the batch's over all processes, or all since the last update. Outside training
    nothing is gathered, and "global" is "batch". Scopes: Qiu et al. 2025, arXiv 2501.11873.
    """

    options: ClassVar[tuple[str, ...]] = ("router_aux_loss_coef", "router_aux_scope")

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.coefficient: float = config.router_aux_loss_coef
        self.scope: Scope = config.router_aux_scope

    def auxiliary_loss(
        self, logits: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"], sequences: int = 1
    ) -> Float[Tensor, ""]:
        """Of one layer; 1 times the coefficient at balance."""
        probabilities = self.probabilities(logits)
        if self.scope == "sequence":
            none = torch.zeros(self.num_experts, dtype=torch.int64, device=index.device)
            each = (all_of.chunk(sequences) for all_of in (probabilities, index, self.real(len(logits))))
            losses = [balance_loss(p[real], i[real], none) for p, i, real in zip(*each, strict=True) if real.any()]
            balance = torch.stack(losses).mean()
        else:
            probabilities, chosen = self.kept(probabilities, index)
            own = torch.bincount(chosen.flatten(), minlength=self.num_experts)
            gathered = self.counts if self.scope == "global" and self.counts is not None else own
            balance = balance_loss(probabilities, chosen, self.across(gathered))
        return self.coefficient * balance + super().auxiliary_loss(logits, index, sequences)


class BalancedByBias(Router):
    """A bias per expert, seen by selection and moved at each update by what its expert lacks (arXiv 2408.15664)."""

    e_score_correction_bias: Tensor
    options: ClassVar[tuple[str, ...]] = ("router_bias_update_speed", "router_bias_rule")

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.speed: float = config.router_bias_update_speed
        self.rule: BiasRule = config.router_bias_rule
        self.register_buffer("e_score_correction_bias", torch.zeros(self.num_experts))

    @torch.no_grad()
    def update(self) -> None:
        """Move each bias by its rule."""
        if self.counts is not None:
            self.e_score_correction_bias += bias_step(self.across(self.counts), self.speed, self.rule)
        super().update()
