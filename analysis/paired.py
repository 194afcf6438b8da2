"""What an intervention changed, token by token against the untouched model: losses, and who was chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.bounds import FEWEST_BLOCKS, jackknife


@dataclass(frozen=True)
class LossChange:
    """Mean change of the loss a token, in nats, with its interval, or the reason why there is none."""

    value: float
    low: float | None
    high: float | None
    reason: str = ""


def loss_change(
    before: Float[Tensor, " prompt"],
    after: Float[Tensor, " prompt"],
    tokens: Int[Tensor, " prompt"],
    blocks: tuple[int, ...],
) -> LossChange:
    """The mean over tokens of the loss after minus before, prompts being the unit: both models read the same ones.

    Args:
        before: Summed loss of each prompt under the untouched model.
        after: The same under the edited one.
        tokens: Counted tokens of each prompt.
        blocks: The block of each prompt.

    Returns:
        Any number, in nats a token; its exponential is the ratio of perplexities. 95 %, delete-one-block jackknife.

    Source:
        Efron & Stein 1981, over blocks as in every measure here.
    """
    block = torch.tensor(blocks)
    present = tuple(sorted({b for b, n in zip(blocks, tokens.tolist(), strict=True) if n}))

    # A lambda, as in `inference`: shape checks wrap a nested def anew at each call.
    kept = lambda left_out: torch.ones_like(block, dtype=torch.bool) if left_out is None else block != left_out  # noqa: E731
    value = lambda left_out: (after - before)[kept(left_out)].sum() / tokens[kept(left_out)].sum()  # noqa: E731
    if len(present) < FEWEST_BLOCKS:
        reason = f"the prompts fall into {len(present)} block(s); the jackknife needs {FEWEST_BLOCKS}"
        return LossChange(float(value(None)), None, None, reason)
    centre, low, high = jackknife(value, present)
    return LossChange(float(centre), float(low), float(high))


def selections_changed(
    one: Int[Tensor, "layer token slot"], other: Int[Tensor, "layer token place"], experts: int
) -> Float[Tensor, " layer"]:
    """The share of selections, by layer, that only one of the two models made; -1 is a slot that nobody served.

    Returns:
        0 to 1: |S xor S'| / (|S| + |S'|), which is 1 - |S and S'| / k where both choose k; NaN where none is chosen.

    Source:
        Dice 1945, as a distance.
    """
    differ = [_differ(a, b, experts) for a, b in zip(one, other, strict=True)]
    return torch.tensor(differ, dtype=torch.float64)


def _differ(one: Tensor, other: Tensor, experts: int) -> float:
    sets = [torch.zeros(len(rows), experts + 1, dtype=torch.bool) for rows in (one, other)]
    for held, rows in zip(sets, (one, other), strict=True):
        held.scatter_(1, torch.where(rows < 0, experts, rows).long(), True)
    first, second = (held[:, :experts] for held in sets)
    total = int(first.sum() + second.sum())
    return int((first ^ second).sum()) / total if total else float("nan")
