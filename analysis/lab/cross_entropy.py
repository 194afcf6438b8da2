"""Cross entropy of a linear head without ever holding the table of logits.

At these sizes the head is half the cost of a step and most of that is memory traffic: tokens x vocabulary numbers
written and read six times. A few hundred tokens at a time stay in cache. The gradient is taken on the way, since the
probabilities are there.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

AT_ONCE = 256


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        losses: list[Tensor] = []
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for start in range(0, len(hidden), AT_ONCE):
            part, wanted = hidden[start : start + AT_ONCE], targets[start : start + AT_ONCE, None]
            table = part @ weight.T
            table -= table.amax(1, keepdim=True)
            target_logit = table.gather(1, wanted)
            total = table.exp_().sum(1, keepdim=True)
            losses.append((total.log() - target_logit).sum())
            table /= total * len(hidden)  # from here on the gradient of the mean loss by the logits
            table.scatter_add_(1, wanted, table.new_full(wanted.shape, -1 / len(hidden)))
            torch.mm(table, weight, out=grad_hidden[start : start + AT_ONCE])
            grad_weight.addmm_(table.T, part)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return torch.stack(losses).sum() / len(hidden)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_outputs[0] * grad_hidden, grad_outputs[0] * grad_weight, None


def linear_cross_entropy(
    hidden: Float[Tensor, "token model"], weight: Float[Tensor, "word model"], targets: Int[Tensor, " token"]
) -> Float[Tensor, ""]:
    """Mean cross entropy of `hidden @ weight.T` against `targets`.

    Returns:
        Nats a token, 0 to infinity; differentiable once, by hidden states and weight.

    Source:
        Ours, after the fused losses of GPU training: the gradient of the logits is softmax minus one-hot.
    """
    loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets)  # pyright: ignore[reportAssignmentType]
    return loss
