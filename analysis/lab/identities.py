"""Whether a training step of the lab moves routers and experts as the closed forms of their gradients say."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from analysis.errors import GeometryError
from analysis.expert import Expert
from analysis.gate_rules import Rule, combine_weights, expert_rows, task_gradient
from analysis.lab.model import LabMoeBlock, LabMoeForCausalLM
from analysis.lab.router import LearnedRouter, Router, SigmoidTopKRouter
from analysis.lab.step import training_step


@dataclass(frozen=True)
class Identities:
    """Of one training step, by layer; all but `mean_row` are relative errors in Frobenius norm.

    `router`: rows' gradient against D' X, D of the task in closed form plus what the router adds to the loss. `gate`
    and `up`: rows of the experts against B' X over their own tokens, all experts together. `mean_row`: norm of the sum
    of the router rows' gradients over the sum of their norms; 0 where no gradient moves the mean row, at most 1.
    """

    router: Float[Tensor, " layer"]
    gate: Float[Tensor, " layer"]
    up: Float[Tensor, " layer"]
    mean_row: Float[Tensor, " layer"]


def gradient_identities(model: LabMoeForCausalLM, tokens: Int[Tensor, "sequence ids"]) -> Identities:
    """Gradients of one batch by autograd, beside the products of scalars and inputs that they must be.

    Args:
        model: In training mode, with a router of learned rows; nothing of it changes but what routers gather.
        tokens: As `training_step` takes them.

    Returns:
        Errors near the rounding of the model's precision (1e-7 in float32); `mean_row` near it too for softmax routers
        without a z-loss, larger with it or with sigmoid scores.

    Raises:
        GeometryError: If the model has no router, or one without learned rows.

    Source:
        Ours, by differentiation of a block; that routers and experts learn along the same inputs: Ahrac, Hochwald &
        Geva 2026, arXiv 2605.12476.
    """
    blocks: list[Any] = [module for module in model.modules() if isinstance(module, LabMoeBlock)]
    if not blocks or not all(isinstance(block.gate.weight, nn.Parameter) for block in blocks):
        raise GeometryError(f"router {model.config.router!r} has no learned rows, so no gradient moves them")
    with _watching(blocks) as (inputs, triples, outputs):
        loss = training_step(model, tokens).loss
    parameters = [p for block in blocks for p in (block.gate.weight, block.experts.gate_up_proj)]
    by_output, by_parameter = (torch.autograd.grad(loss, of, retain_graph=True) for of in (outputs, parameters))
    layers = [
        _layer(block, inputs[n], triples[n], by_output[n], by_parameter[2 * n], by_parameter[2 * n + 1], len(tokens))
        for n, block in enumerate(blocks)
    ]
    router, gate, up, mean_row = torch.stack(layers, 1)
    return Identities(router, gate, up, mean_row)


@contextmanager
def _watching(blocks: list[Any]) -> Iterator[tuple[list[Tensor], list[Any], list[Tensor]]]:
    """Inputs of the blocks, what their routers returned and their outputs, first layer first."""
    inputs: list[Tensor] = []
    triples: list[Any] = []
    outputs: list[Tensor] = []

    def called(_block: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(given[0].detach())
        outputs.append(output)

    def routed(_router: nn.Module, _given: Any, triple: Any) -> None:
        triples.append(triple)

    hooks = [block.register_forward_hook(called) for block in blocks]
    hooks += [block.gate.register_forward_hook(routed) for block in blocks]
    try:
        yield inputs, triples, outputs
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def _layer(
    block: Any,
    given: Tensor,
    triple: tuple[Tensor, Tensor, Tensor],
    pulled: Tensor,
    rows: Tensor,
    matrices: Tensor,
    sequences: int,
) -> Float[Tensor, "4"]:
    """The four numbers of one layer: `pulled` the loss's gradient by the block's output, then those by its weights."""
    x, pulled = given.flatten(0, -2), pulled.flatten(0, -2)
    logits, weights, index = triple
    selected = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, index, weights > 0)
    rule, experts = _rule(block.gate), _experts(block)
    gains = torch.stack([(pulled * expert(x)).sum(-1) for expert in experts], 1)
    by_logits = task_gradient(logits, selected, gains, rule) + _added(block.gate, logits, index, sequences)
    mixed = combine_weights(logits, selected, rule)
    slopes = [expert_rows(expert, x, mixed[:, n, None] * pulled) for n, expert in enumerate(experts)]
    moved = torch.stack([torch.cat([side.mT @ x for side in sides if side is not None]) for sides in slopes])
    (gate, up), (by_gate, by_up) = moved.chunk(2, 1), matrices.chunk(2, 1)
    mean_row = rows.sum(0).norm() / rows.norm(dim=1).sum()
    errors = [_off(by_logits.mT @ x, rows), _off(gate, by_gate), _off(up, by_up)]
    return torch.stack([*errors, mean_row])


def _rule(router: LearnedRouter) -> Rule:
    renormalised = router.renormalise and not router.serves_all
    if isinstance(router, SigmoidTopKRouter):
        return "sigmoid_selected" if renormalised else "sigmoid"
    return "softmax_selected" if renormalised else "softmax"


def _experts(block: Any) -> list[Expert]:
    gate, up = block.experts.gate_up_proj.chunk(2, 1)
    act = block.experts.act_fn
    down = block.experts.down_proj
    return [Expert(gate[e], up[e], down[e], lambda g, u: act(g) * u) for e in range(len(down))]


def _added(router: Router, logits: Tensor, index: Tensor, sequences: int) -> Float[Tensor, "token expert"]:
    """Gradient by the logits of what the router adds to the loss: it sees nothing else of the model."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        loss = router.auxiliary_loss(leaf, index, sequences)
        return torch.autograd.grad(loss, leaf)[0] if loss.requires_grad else torch.zeros_like(logits)


def _off(ours: Tensor, theirs: Tensor) -> Float[Tensor, ""]:
    return (ours - theirs).norm() / theirs.norm()
