"""What a gate lets through: gradients of a loss by the router's scores, in closed form, for the rules in use.

One block, `y = sum over selected i of g_i f_i(x)`, its selection held fixed. With `a_i = <dL/dy, f_i(x)>` every
gradient by the router's rows is `D' X`: one number per token and expert, `D`, times the token.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analysis.expert import Expert

Rule = Literal["softmax", "softmax_selected", "sigmoid", "sigmoid_selected"]
"""softmax over all experts; softmax over the selected; sigmoid as it is; sigmoid divided by its sum over the selected
(OLMoE and Qwen1.5-MoE; Mixtral; -; DeepSeek-V3)."""


def combine_weights(
    logits: Float[Tensor, "token expert"], selected: Bool[Tensor, "token expert"], rule: Rule
) -> Float[Tensor, "token expert"]:
    """The weights g under a rule, 0 for what was not selected.

    Returns:
        0 to 1; they sum to 1 over experts under the two `_selected` rules.

    Source:
        Muennighoff et al. 2024 (softmax), Jiang et al. 2024 (softmax_selected), DeepSeek-AI 2024 (sigmoid_selected).
    """
    if rule == "softmax_selected":
        # Not a quotient: an expert that was not selected must get a gradient of 0, not of rounding.
        return logits.masked_fill(~selected, -torch.inf).softmax(-1)
    kept = (logits.softmax(-1) if rule == "softmax" else logits.sigmoid()) * selected
    return kept / kept.sum(-1, keepdim=True) if rule == "sigmoid_selected" else kept


def task_gradient(
    logits: Float[Tensor, "token expert"],
    selected: Bool[Tensor, "token expert"],
    gains: Float[Tensor, "token expert"],
    rule: Rule,
) -> Float[Tensor, "token expert"]:
    """D of the task loss: `gains` are a_i, of which only the selected count.

    Under `softmax` an expert that was not selected still moves, by -p_j times the mean gain; under the other rules it
    gets exactly 0.

    Returns:
        Loss per unit of logit; sums to 0 over experts under the two softmax rules.

    Source:
        Ours, by differentiation; checked against autograd.
    """
    g, a = combine_weights(logits, selected, rule), gains * selected
    mean = (g * a).sum(-1, keepdim=True)
    if rule == "softmax":
        return g * a - logits.softmax(-1) * mean
    if rule == "softmax_selected":
        return g * (a - mean)
    slope = logits.sigmoid() * (1 - logits.sigmoid()) * selected
    if rule == "sigmoid":
        return slope * a
    return slope / (logits.sigmoid() * selected).sum(-1, keepdim=True) * (a - mean)


def balance_gradient(
    probabilities: Float[Tensor, "token expert"], loads: Float[Tensor, " expert"]
) -> Float[Tensor, "token expert"]:
    """D of the balance loss E sum f_j mean p_j with loads f held fixed (they sum to 1): every expert, every token.

    Returns:
        Loss per unit of logit, for the mean over these tokens and coefficient 1; sums to 0 over experts.

    Source:
        Loss: Fedus et al. 2021, arXiv 2101.03961, as Megatron scales it; its gradient: ours.
    """
    tokens, experts = probabilities.shape
    return experts / tokens * probabilities * (loads - (probabilities * loads).sum(-1, keepdim=True))


def z_gradient(logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
    """D of the router z-loss, mean squared logsumexp: the one term that moves all rows the same way.

    Returns:
        Loss per unit of logit, for the mean over these tokens and coefficient 1.

    Source:
        Zoph et al. 2022, arXiv 2202.08906; its gradient: ours.
    """
    return 2 / len(logits) * torch.logsumexp(logits, -1, keepdim=True) * logits.softmax(-1)


def expert_rows(
    expert: Expert, x: Float[Tensor, "token model"], pulled: Float[Tensor, "token model"]
) -> tuple[Float[Tensor, "token hidden"] | None, Float[Tensor, "token hidden"]]:
    """How far each token moves each hidden row of an expert: its gradients by gate and up are these rows' `B' X`.

    Args:
        expert: Which, its combine weight left out.
        x: Its input.
        pulled: g dL/dy at each token: the upstream gradient times the combine weight.

    Returns:
        B for gate (None without one) and for up, in loss per unit of pre-activation.

    Source:
        Ours: the router's rows and the expert's rows learn along the same x (Ahrac et al. 2026, arXiv 2605.12476).
    """
    gate, up = expert.slopes_each(x)
    back = pulled @ expert.down
    return None if gate is None else back * gate, back * up
