"""One training step and one evaluation step, as values: no optimiser, no device, no file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.lab.cross_entropy import linear_cross_entropy
from analysis.lab.model import LabMoeForCausalLM, routers

Triples = list[tuple[Tensor, Tensor, Tensor]]  # what each router returned, first layer first


@dataclass(frozen=True)
class StepLosses:
    """What one batch says: `loss` = `cross_entropy` + `auxiliary` carries the gradient; loads are selections."""

    loss: Float[Tensor, ""]
    cross_entropy: Float[Tensor, ""]
    auxiliary: Float[Tensor, ""]
    load: Int[Tensor, "layer expert"] | None  # None where nothing is selected: the dense control and a soft router


def training_step(model: LabMoeForCausalLM, tokens: Int[Tensor, "sequence ids"]) -> StepLosses:
    """Losses and loads of one batch; backward, optimiser and `update_routers` are the caller's.

    Args:
        model: In training mode, so that the routers gather what they update from.
        tokens: One id more than the context: inputs are all but the last, targets all but the first.

    Returns:
        Losses in nats a token (0 to infinity), the auxiliary ones summed over layers; selections by layer and expert.

    Source:
        Ours; the auxiliary convention is the router's.
    """
    with watching(model) as seen:
        hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state
    cross_entropy = linear_cross_entropy(hidden.flatten(0, 1), model.lm_head.weight, tokens[:, 1:].flatten())
    auxiliary = auxiliary_loss(model, seen, len(tokens))
    return StepLosses(cross_entropy + auxiliary, cross_entropy.detach(), auxiliary.detach(), _loads(seen))


def auxiliary_loss(model: nn.Module, seen: Triples, sequences: int) -> Float[Tensor, ""]:
    """What the routers add to the loss of one pass: balancing and z-losses, each with its own coefficient.

    Args:
        model: The lab's, or any that has the lab's routers in it.
        seen: What `watching` kept of that pass.
        sequences: How many the batch holds, of equal length; padding that the mask names is left out.

    Returns:
        Their sum over layers, 0 or more; 0 where no router balances by gradient.

    Source:
        Ours; each router says whose its terms are.
    """
    total = torch.zeros((), device=next(model.parameters()).device)
    for router, (scores, _, index) in zip(routers(model), seen, strict=True):
        total = total + router.auxiliary_loss(scores, index, sequences).to(total.device)
    return total


def update_routers(model: nn.Module) -> None:
    """Let every router apply what it gathered; once an optimiser step.

    Returns:
        Nothing; selection biases and centroids move.

    Source:
        Ours: the step level, as in Megatron, not the forward pass.
    """
    for router in routers(model):
        router.update()


@torch.no_grad()
def evaluation_step(
    model: LabMoeForCausalLM, tokens: Int[Tensor, "sequence ids"]
) -> tuple[Float[Tensor, " sequence"], Int[Tensor, "layer expert"] | None]:
    """Loss of each sequence and the selections of all, with every router frozen.

    Returns:
        Mean nats a token of each sequence (0 to infinity); selections by layer and expert, or None without any.

    Source:
        Ours.
    """
    was_training = model.training
    model.eval()
    try:
        with watching(model) as seen:
            logits = model(tokens[:, :-1], use_cache=False).logits.float()
    finally:
        model.train(was_training)
    losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)
    return losses, _loads(seen)


@contextmanager
def watching(model: nn.Module) -> Iterator[Triples]:
    """Keep what every router returns in the passes inside: one entry a layer and pass, in the order they ran.

    Returns:
        A list that fills as the model runs: logits [token, expert], weights and indices [token, slot].

    Source:
        Ours: the hooks are gone at the end, error or not.
    """
    seen: Triples = []

    def keep(_module: nn.Module, _inputs: Any, triple: Any) -> None:
        seen.append(triple)

    hooks = [router.register_forward_hook(keep) for router in routers(model)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _loads(seen: Triples) -> Tensor | None:
    if not seen or seen[0][2].shape[1] == seen[0][0].shape[1]:
        return None
    experts = seen[0][0].shape[1]
    return torch.stack([torch.bincount(index.flatten(), minlength=experts) for _, _, index in seen])
