"""Loads of experts and how uneven they are: the formulas, apart from where the counts come from."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from analysis.statistic import State

Extreme = Literal["max", "min"]
Unevenness = Literal["max", "min", "cv", "gini"]
NO_TOKENS = "NaN: no token was routed in this layer."


def relative(counts: Shaped[Tensor, "... expert"]) -> Float[Tensor, "... expert"]:
    """Each expert's count over an equal share.

    Returns:
        0 to E, 1 is an equal share; NaN where nothing was counted at all.

    Source:
        Wang et al. 2024, arXiv 2408.15664 (Load_i over its mean).
    """
    return counts.double() / counts.double().mean(-1, keepdim=True)


def violation(counts: Shaped[Tensor, "... expert"], which: Extreme = "max") -> Float[Tensor, "*case"]:
    """How far the busiest expert lies above an equal share (MaxVio), or the idlest below it (MinVio).

    `max`: (max load - mean load) / mean load. `min`: (mean load - min load) / mean load.

    Returns:
        0 (balanced) to E/k - 1 (`max`: the same k experts every time; to E - 1 if not all k selections of a token are
        counted) or to 1 (`min`: an expert without tokens); NaN where nothing was counted.

    Source:
        Wang et al. 2024, arXiv 2408.15664 (`max`); `min` is its mirror, as training monitors print it.
    """
    share = relative(counts)
    return share.amax(-1) - 1 if which == "max" else 1 - share.amin(-1)


def unevenness(counts: Shaped[Tensor, "... expert"], which: Unevenness) -> Float[Tensor, "*case"]:
    """How unequal loads are, by one of four numbers that are 0 at balance.

    `max`, `min`: `violation`. `cv`: standard deviation over mean, of the E experts there are, not of a sample of them
    (times sqrt(E / (E - 1)) where a monitor divides by E - 1). `gini`: mean difference of two experts over twice the
    mean load.

    Returns:
        If all k selections of a token count, `cv` is at most sqrt(E/k - 1) and `gini` 1 - k/E (the same k experts every
        time); else those of k = 1. NaN where nothing was counted.

    Source:
        Coefficient of variation: Shazeer et al. 2017, arXiv 1701.06538; Gini 1912.
    """
    if which in ("max", "min"):
        return violation(counts, which)
    share = relative(counts)
    if which == "cv":
        return share.std(-1, correction=0)
    experts = share.shape[-1]
    rank = torch.arange(1 - experts, experts, 2, dtype=share.dtype, device=share.device)
    return (share.sort(-1).values * rank).sum(-1) / experts**2


def evenness(counts: Shaped[Tensor, "... expert"]) -> Float[Tensor, "*case"]:
    """Entropy of the shares, over that of equal shares.

    Returns:
        0 (one expert does everything) to 1 (balanced); NaN where nothing was counted.

    Source:
        Shannon 1948, normalised by ln E.
    """
    share = counts.double() / counts.double().sum(-1, keepdim=True)
    return torch.special.entr(share).sum(-1) / math.log(counts.shape[-1])


def layer_counts(prompt_counts: State, count: str) -> Shaped[Tensor, "layer expert"]:
    """Counts (or weights) of all prompts together.

    Returns:
        (Token, slot) pairs per layer and expert, or sums of combine weights for `weights`.

    Source:
        Ours: counts add over prompts.
    """
    return prompt_counts[count].sum(0)


def idle(counts: Shaped[Tensor, "layer expert"]) -> tuple[dict[str, int | float | str], tuple[str, ...]]:
    """What to say of experts without tokens.

    Returns:
        The fact `dead experts` (over all layers), and a caveat if a whole layer saw nothing.

    Source:
        Ours: an expert without tokens is counted, never filled in.
    """
    seen = counts.sum(-1) > 0
    return {"dead experts": int((counts[seen] == 0).sum())}, () if bool(seen.all()) else (NO_TOKENS,)


def over_layers(values: Float[Tensor, " layer"], layers: tuple[str, ...], worst: str) -> dict[str, int | float | str]:
    """The mean over layers and the worst layer, as facts; NaN layers are left out, and none is named if all are.

    Args:
        values: One number per layer.
        layers: Their labels.
        worst: "highest" or "lowest".

    Returns:
        Facts in the unit of the values.

    Source:
        Ours: an average over layers hides the one layer that fails.
    """
    facts: dict[str, int | float | str] = {"mean over layers": float(values.nanmean())}
    if bool(values.isnan().all()):
        return facts
    filled = values.nan_to_num(nan=-math.inf) if worst == "highest" else -values.nan_to_num(nan=math.inf)
    row = int(filled.argmax())
    return facts | {f"{worst} layer": layers[row], f"{worst} value": float(values[row])}
