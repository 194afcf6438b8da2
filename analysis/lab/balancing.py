"""How a router is kept from sending everything to a few experts: two losses, and rules that move a bias."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

BiasRule = Literal["sign", "centred_sign", "proportional"]
Scope = Literal["sequence", "batch", "global"]
"""Over which tokens a loss takes the loads: each sequence's own, the batch's, or all since the last update."""


def wide(logits: Tensor) -> torch.dtype:
    """The precision that scores are made in: float32, or the logits' own if that is wider.

    Returns:
        A dtype.

    Source:
        Ours.
    """
    return torch.promote_types(logits.dtype, torch.float32)


def balance_loss(
    probabilities: Float[Tensor, "token expert"], index: Int[Tensor, "token slot"], counts: Int[Tensor, " expert"]
) -> Float[Tensor, ""]:
    """E sum_i f_i P_i: f_i the share of expert i in `counts`, P_i its mean probability over these tokens.

    Args:
        probabilities: Sum to one over experts; only they carry a gradient.
        index: The experts chosen by these tokens, of which f is made where `counts` has none.
        counts: Selections of each expert, of these tokens or of more.

    Returns:
        1 at balance, at most the number of experts.

    Source:
        Fedus et al. 2021, arXiv 2101.03961, with f over all k selections as in Megatron; f over more tokens than P:
        Qiu et al. 2025, arXiv 2501.11873.
    """
    experts = probabilities.shape[-1]
    if not int(counts.sum()):
        counts = torch.bincount(index.flatten(), minlength=experts)
    return experts * (counts / counts.sum() * probabilities.mean(0)).sum()


def z_loss(logits: Float[Tensor, "token expert"]) -> Float[Tensor, ""]:
    """Mean over tokens of the squared log-sum-exp of the logits.

    Returns:
        0 or more, in squared units of the logits.

    Source:
        Zoph et al. 2022, arXiv 2202.08906.
    """
    return torch.logsumexp(logits.to(wide(logits)), -1).square().mean()


def bias_step(counts: Int[Tensor, " expert"], speed: float, rule: BiasRule) -> Float[Tensor, " expert"]:
    """How far each selection bias moves: up if its expert served fewer tokens than the mean, down if more.

    `sign`: by `speed`, whatever the difference; sign(0) = 0. `centred_sign`: the same less the mean step, so that the
    biases keep their mean. `proportional`: by `speed` times the difference in units of the mean, so that neither the
    batch nor k changes the step.

    Returns:
        In the unit of the selection scores.

    Source:
        Sign rule: Wang et al. 2024, arXiv 2408.15664, mean minus count as in Megatron; its proportional variant is in
        units of tokens, ours is not. Centred: a variant in use, of which we know no paper.
    """
    lacking = counts.float().mean() - counts
    if rule == "proportional":
        return speed * lacking / counts.float().mean().clamp(min=1e-12)
    step = lacking.sign()
    return speed * (step - step.mean() if rule == "centred_sign" else step)


def max_violation(load: Int[Tensor, "layer expert"]) -> Float[Tensor, " layer"]:
    """How far the busiest expert of each layer exceeds the mean load.

    Returns:
        (max - mean) / mean, from 0 (balanced) to experts / k - 1 (all tokens to the same k).

    Source:
        MaxVio of arXiv 2408.15664; global when the loads are of a whole set.
    """
    load = load.double()
    mean = load.mean(-1)
    return (load.amax(-1) - mean) / mean
