"""Where each expert's tokens lie at every checkpoint of an ordered list."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.centroids import Centroid, centroids
from analysis.errors import NotComparable, TooFew
from analysis.measure import Inputs
from analysis.statistic import State


def tracks_of(steps: tuple[Inputs, ...], centroid: Centroid) -> Float[Tensor, "step layer expert model"]:
    """Centroids of all experts at all checkpoints.

    Returns:
        In units of the hidden state; NaN for an expert without tokens.

    Raises:
        TooFew: With fewer than two checkpoints.
        NotComparable: If they differ in layers, experts or width.

    Source:
        Centroids: Ahrac et al. 2026, arXiv 2605.12476.
    """
    if len(steps) < 2:
        raise TooFew(f"a track over {len(steps)} checkpoint(s); it needs two")
    sizes = {(side.shape.layers, side.shape.experts, side.shape.model) for side in steps}
    if len(sizes) > 1:
        raise NotComparable(f"checkpoints of different layers, experts or width have no common track: {sorted(sizes)}")
    return torch.stack([centroids(side.centroid_sums, centroid) for side in steps])


def duration(steps: tuple[Inputs, ...]) -> float:
    """Training steps from the first to the last checkpoint by their labels, or checkpoints passed if those say nothing.

    Returns:
        Above 0.

    Source:
        Ours.
    """
    try:
        passed = abs(float(steps[-1].label) - float(steps[0].label))
    except ValueError:
        return float(len(steps) - 1)
    return passed if math.isfinite(passed) and passed > 0 else float(len(steps) - 1)


def resampled(
    centroid_sums: State, centroid: Centroid, generator: torch.Generator
) -> Float[Tensor, "layer expert model"]:
    """How far another sample of as many prompts could have put each centroid: half of what two random halves differ by.

    Returns:
        In units of the hidden state, 0 on average; NaN for an expert without tokens in one of the halves.

    Source:
        Ours: two halves differ by four times the variance of the whole.
    """
    blocks = torch.tensor(centroid_sums.blocks)
    order = blocks[torch.randperm(len(blocks), generator=generator)]
    first, second = (
        replace(centroid_sums, arrays={name: array[half] for name, array in centroid_sums.arrays.items()})
        for half in (order[: len(order) // 2], order[len(order) // 2 :])
    )
    return (centroids(first, centroid) - centroids(second, centroid)) / 2
