"""Pairs of prompts of one category and of different ones, by depth: of what the effect of a task on routing is made."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.effect import Group, within_and_across
from analysis.prompt_pairs import distinct_pairs
from analysis.signatures import Form, Weighting, prompt_cosines
from analysis.statistic import State


def effect_groups(
    counts: State,
    labels: Int[Tensor, "draw prompt"],
    how: tuple[Weighting, Form, bool],
    sizes: Int[Tensor, " class"] | None = None,
) -> tuple[Group, Group]:
    """Cosines of signatures within and across categories, layer by layer and for the mean over layers.

    Args:
        counts: Counts by prompt, layer and expert.
        labels: One labelling of the prompts per row.
        how: What signatures count, in which form their cosines are taken, and whether they are centred.
        sizes: Prompts that each label is to stand for; as many as have it, if not given.

    Returns:
        Within and across, each draw by row, one row more than layers: the mean over layers, whose effect is the
        published number. In cosines.

    Source:
        Avinash 2026, arXiv 2603.11114.
    """
    cosines: Float[Tensor, "layer prompt prompt"] = prompt_cosines(counts, *how)
    every = torch.cat([cosines, cosines.nanmean(0, keepdim=True)])
    return within_and_across(every, distinct_pairs(counts.prompts), labels, sizes)
