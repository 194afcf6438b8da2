"""The effect of a label on a likeness: within and across groups, their distance, and what shuffled labels give."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analysis.errors import TooFew
from analysis.slots import Prompts


@dataclass(frozen=True)
class Group:
    """Pairs of one kind: how many, their mean and their standard deviation (n - 1); one entry per layer."""

    count: Float[Tensor, "*case"]
    mean: Float[Tensor, "*case"]
    sd: Float[Tensor, "*case"]


def cohens_d(within: Group, across: Group) -> Float[Tensor, "*case"]:
    """Distance of two means in pooled standard deviations, each variance weighted by its n - 1.

    Returns:
        0 for no effect, positive if `within` is larger; NaN where a group has fewer than two pairs or none differ.

    Source:
        Cohen 1988; this pooling, and no other, gives the 1.44 of Avinash 2026, arXiv 2603.11114.
    """
    freedom = within.count + across.count - 2
    pooled = ((within.count - 1) * within.sd**2 + (across.count - 1) * across.sd**2) / freedom
    # A spread of rounding errors is no spread.
    spread = pooled.sqrt() > 1e-12 * torch.maximum(within.mean.abs(), across.mean.abs())
    enough = (within.count > 1) & (across.count > 1) & spread
    return torch.where(enough, (within.mean - across.mean) / pooled.sqrt(), torch.nan)


def within_and_across(
    cosines: Float[Tensor, "layer prompt prompt"],
    pairs: Bool[Tensor, "prompt prompt"],
    labels: Int[Tensor, "draw prompt"],
    sizes: Int[Tensor, " class"] | None = None,
) -> tuple[Group, Group]:
    """Pairs of equal and of different labels, for many labellings at once.

    Three matrix products per layer serve all labellings: over pairs of equal label, the sum of anything is `sum_c y_c'
    S y_c` with y_c the indicator of label c.

    Args:
        cosines: Likeness of prompts per layer; NaN pairs are left out of their layer.
        pairs: Which pairs count, each once.
        labels: One labelling per row.
        sizes: Prompts that each label is to stand for; as many as have it, if not given.

    Returns:
        Within and across, each draw by layer, in the unit of the likeness.

    Source:
        Avinash 2026, arXiv 2603.11114 (within and across); the batched form is ours.
    """
    used = pairs & ~cosines.isnan()
    s = torch.where(used, cosines, torch.zeros(()).double())
    # Moments about each layer's mean: about 0 the difference of squares would lose half the digits.
    centre = s.sum((-1, -2)) / used.sum((-1, -2))
    s = torch.where(used, s - centre[:, None, None], s)
    moments = torch.stack([used.double(), s, s**2])
    indicator = torch.nn.functional.one_hot(labels).double()
    draws, prompts, classes = indicator.shape
    if sizes is not None:
        equal, every = _standing_for(moments, indicator, sizes)
        return _group(equal, centre), _group(every - equal, centre)
    flat = indicator.permute(1, 0, 2).reshape(prompts, draws * classes)
    equal = ((moments @ flat) * flat).sum(-2).unflatten(-1, (draws, classes)).sum(-1).movedim(-1, 1)
    return _group(equal, centre), _group(moments.sum((-1, -2))[:, None] - equal, centre)


def _standing_for(
    moments: Float[Tensor, "moment layer prompt prompt"],
    indicator: Float[Tensor, "draw prompt class"],
    sizes: Int[Tensor, " class"],
) -> tuple[Float[Tensor, "moment draw layer"], Float[Tensor, "moment draw layer"]]:
    """Sums over pairs of equal label and over all, each pair of labels as if it had the pairs of so many prompts."""
    tables = torch.einsum("dpc,mlpq,dqe->mdlce", indicator, moments, indicator)
    tables = tables.triu() + tables.tril(-1).mT
    same, there = torch.eye(len(sizes), dtype=torch.float64), indicator.sum(1)
    wanted, held = (n[..., :, None] * n[..., None, :] - same * n[..., :, None] for n in (sizes.double(), there))
    tables = tables * torch.where(held > 0, wanted / held, 0.0)[None, :, None]
    return tables.diagonal(dim1=-2, dim2=-1).sum(-1), tables.sum((-1, -2))


def shuffled(labels: Int[Tensor, " prompt"], draws: int, generator: torch.Generator) -> Int[Tensor, "draw prompt"]:
    """Labellings that keep the size of each group and nothing else.

    Returns:
        One random order of the labels per row.

    Source:
        Fisher 1935: permutation of labels.
    """
    return labels[torch.rand(draws, len(labels), generator=generator).argsort(-1)]


def label_codes(categories: tuple[str, ...]) -> Int[Tensor, " prompt"]:
    """Categories as numbers.

    Returns:
        0 to the number of categories - 1, in alphabetical order.

    Raises:
        TooFew: If there are not two categories, or no category has two prompts.

    Source:
        Ours: without both kinds of pair there is no effect to speak of.
    """
    names = sorted(set(categories))
    if len(names) < 2 or len(categories) == len(names):
        raise TooFew(
            f"{len(categories)} prompts in {len(names)} categories ({', '.join(names) or 'none'}): "
            "within against across needs two categories, and two prompts in one of them"
        )
    return torch.tensor([names.index(c) for c in categories])


def sizes_by_design(prompts: Prompts) -> Int[Tensor, " class"] | None:
    """How many prompts each category stands for where a block of prompts was left out, if that was so by design.

    Categories of equally many prompts were made so: other prompts would have had the same shares, and what a block
    takes from one is no news of it. Other shares are taken as chance gave them.

    Returns:
        Prompts of each category, in alphabetical order; None where nothing was left out, where categories differ in
        size, or where one of them is gone.

    Source:
        Ours: post-stratified replicates, as of a stratified sample (Cochran 1977, section 5A.9).
    """
    counts = Counter(prompts.whole)
    if not counts or len(set(counts.values())) > 1 or set(prompts.categories) != counts.keys():
        return None
    return torch.tensor([counts[name] for name in sorted(counts)])


def _group(moments: Float[Tensor, "moment draw layer"], centre: Float[Tensor, " layer"]) -> Group:
    count, total, squares = moments
    mean = total / count
    variance = (squares / count - mean**2).clamp(min=0) * count / (count - 1)
    return Group(count, mean + centre, torch.where(count > 1, variance.sqrt(), torch.nan))
