"""One run by one process or by many: each takes its share of a batch, and what routers gather is summed over all."""

from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from analysis.lab.model import LabMoeForCausalLM, routers
from analysis.lab.step import StepLosses, evaluation_step, training_step
from backend.errors import Refusal

Evaluation = tuple[Tensor, Tensor | None]  # loss of each sequence; selections by layer and expert, if there are any


def accelerator() -> Accelerator:
    """The process's place among those that train: alone on a processor, unless `accelerate launch` says otherwise."""
    cuda = torch.cuda.is_available()
    return Accelerator(cpu=not cuda, mixed_precision="bf16" if cuda else "no")


class Stepping(nn.Module):
    """The model with a batch's losses as its forward pass: what accelerate wraps, so that gradients are averaged.

    Validation goes through it too: where parameters are sharded, only the wrapped pass gathers them.
    """

    def __init__(self, model: LabMoeForCausalLM):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, learn: bool = True) -> StepLosses | Evaluation:
        """Losses of one process's share, or with every router frozen those of each sequence."""
        return training_step(self.model, tokens) if learn else evaluation_step(self.model, tokens)


def join(model: LabMoeForCausalLM, accelerator: Accelerator) -> None:
    """Let the routers of all processes gather as one."""
    if accelerator.num_processes > 1:
        for router in routers(model):
            router.across = lambda gathered: accelerator.reduce(gathered.clone(), "sum")  # in place, else


def share(tokens: Tensor, accelerator: Accelerator) -> Tensor:
    """This process's sequences of a batch, as many as any other's: a mean of means is the mean."""
    if len(tokens) % accelerator.num_processes:
        raise Refusal(
            f"A batch of {len(tokens)} sequences cannot be shared equally by {accelerator.num_processes} processes; "
            f"use a number that divides {len(tokens)}."
        )
    return tokens[accelerator.process_index :: accelerator.num_processes].to(accelerator.device)


def of_all(losses: StepLosses, accelerator: Accelerator) -> StepLosses:
    """What the whole batch said."""
    if accelerator.num_processes == 1:
        return losses
    means = {name: accelerator.reduce(getattr(losses, name).detach(), "mean") for name in _MEANS}
    load = None if losses.load is None else accelerator.reduce(losses.load, "sum")
    return replace(losses, **means, load=load)


@torch.no_grad()
def evaluate(stepping: nn.Module, accelerator: Accelerator, tokens: Tensor) -> Evaluation:
    """Loss of each sequence and the selections of all. Every process must ask, and is told the same."""
    return stepping(tokens.to(accelerator.device), learn=False)


def weights(stepping: nn.Module, accelerator: Accelerator) -> dict[str, Tensor]:
    """Everything a step stores, gathered from all processes; the tied head once. Every process must ask."""
    model = accelerator.unwrap_model(stepping).model
    whole = accelerator.get_state_dict(stepping)
    named = {name.removeprefix("model."): tensor for name, tensor in whole.items()}
    return {name: tensor.detach().clone() for name, tensor in named.items() if name not in model.all_tied_weights_keys}


_MEANS = ("loss", "cross_entropy", "auxiliary")
