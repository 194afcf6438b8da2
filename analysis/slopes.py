"""From sums of slopes to mean slopes, and from a layer's slopes to its mean Jacobians' products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.jacobians import MeanJacobians, Slopes, Weights, of_layer
from analysis.slots import Layered
from analysis.statistic import State

Over = Literal["common", "served"]


def token_counts(slope_sums: State, over: Over) -> Int[Tensor, "layer expert"]:
    """How many tokens an expert's mean is over: the common ones, the same for all experts, or those it served.

    Returns:
        Tokens.

    Source:
        Ours.
    """
    if over == "served":
        return slope_sums["served"].sum(0)
    return slope_sums["common"].sum(0)[:, None].expand(-1, slope_sums.shape.experts)


def mean_jacobians(
    slope_sums: State, weights: Weights, over: Over, shared: Weights | None = None
) -> Iterator[MeanJacobians]:
    """The mean Jacobians, layer by layer; an expert without tokens has slopes of NaN.

    Args:
        slope_sums: The state of that statistic.
        weights: The slots gate, up, down.
        over: Which tokens; those that a shared expert served are all.
        shared: The shared expert's slots, where it is asked for too; they are not read in a model without one.

    Returns:
        One layer at a time, since the weights of all do not fit.

    Source:
        Liu 2026, arXiv 2605.16349; closed form: ours.
    """
    names = ("gate", "up") if over == "served" else ("common_gate", "common_up")
    slots, slopes = _settled(weights, [slope_sums[name].sum(0) for name in names], token_counts(slope_sums, over))
    beside = None if shared is None or not slope_sums.shape.shared else _beside(slope_sums, shared, over)
    for layer in range(len(slope_sums.shape.layers)):
        own = of_layer(slots, slopes, layer)
        yield own if beside is None else replace(own, beside=of_layer(*beside, layer))


def without_tokens(tokens: Int[Tensor, "*case"], what: str = "expert(s)") -> tuple[str, ...]:
    """The caveat that explains a NaN by a lack of tokens.

    Returns:
        One line, or none if every count is above 0.

    Source:
        Ours.
    """
    dead = int((tokens == 0).sum())
    return (f"NaN: {dead} {what} without tokens.",) if dead else ()


def shuffled_down(jacobians: MeanJacobians, order: Int[Tensor, " expert"], generator: torch.Generator) -> MeanJacobians:
    """The same layer with the rows of each down projection in a random order and with random signs of its own.

    Slopes do not depend on the down projections, so these are the exact mean Jacobians of experts that write to
    unrelated output directions and are otherwise the same. Without the signs what all rows share would stay shared.

    Args:
        jacobians: The layer's.
        order: In which order the experts draw; sorted by what they are, a new numbering draws the same.
        generator: Where the draws come from.

    Returns:
        Experts in their own places; a shared one draws last.

    Source:
        Ours.
    """
    down = torch.empty_like(jacobians.down)
    for expert in order.tolist():
        rows = torch.randperm(down.shape[1], generator=generator)
        signs = torch.randint(0, 2, (len(rows), 1), generator=generator) * 2 - 1
        down[expert] = jacobians.down[expert][rows] * signs
    beside = jacobians.beside
    if beside is not None:
        beside = shuffled_down(beside, torch.zeros(1, dtype=torch.int64), generator)
    return replace(jacobians, down=down, beside=beside)


def _settled(
    weights: Weights,
    sums: list[Float[Tensor, "layer expert hidden"]],
    tokens: Int[Tensor, "layer expert"],
) -> tuple[Weights, Slopes]:
    """Weights and mean slopes, from the sums by gate and by up."""
    gate, up = (each / tokens[..., None] for each in sums)
    # Experts without a gate have slopes of 0 by it, and no gate to read: asking for it would be refused.
    gated = bool(sums[0].any())
    return (weights if gated else (None, *weights[1:])), (gate if gated else None, up)


def _beside(slope_sums: State, shared: Weights, over: Over) -> tuple[Weights, Slopes]:
    """The shared expert of each layer, as a layer of one expert."""
    names = ("shared_gate", "shared_up") if over == "served" else ("shared_common_gate", "shared_common_up")
    tokens = slope_sums["shared_served"].sum(0) if over == "served" else token_counts(slope_sums, over)[:, :1]
    slots, slopes = _settled(shared, [slope_sums[name].sum(0).unsqueeze(1) for name in names], tokens)
    gate, up, down = (None if slot is None else _OfOne(slot) for slot in slots)
    return (gate, up, down), slopes


@dataclass(frozen=True)
class _OfOne:
    """A slot of one expert a layer, read as one of many."""

    slot: Layered

    def __len__(self) -> int:
        return len(self.slot)

    def __getitem__(self, layer: int) -> Tensor:
        return self.slot[layer].unsqueeze(0)
