"""Pairs of two different prompts: a copy of a text is no evidence of anything."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analysis.slots import Prompts


def distinct_pairs(prompts: Prompts) -> Bool[Tensor, "prompt prompt"]:
    """Pairs of two different texts, each once.

    Returns:
        True above the diagonal, except for a prompt and its own copy.

    Source:
        Ours: a copy is no evidence that a category is alike.
    """
    number = {digest: i for i, digest in enumerate(dict.fromkeys(prompts.digests))}
    text = torch.tensor([number[digest] for digest in prompts.digests], dtype=torch.long)
    return (text[:, None] != text[None, :]).triu(1)


def pair_mean(similar: Float[Tensor, "prompt prompt"], prompts: Prompts) -> tuple[float, int]:
    """Mean over the pairs of two different texts that are not NaN, and how many they are.

    Returns:
        In the unit of `similar` (NaN for no pair), and a count.

    Source:
        Ours: all cells less those of the same text, without a mask as large as the matrix.
    """
    rows: dict[str, list[int]] = {}
    for row, digest in enumerate(prompts.digests):
        rows.setdefault(digest, []).append(row)
    alone = [copies[0] for copies in rows.values() if len(copies) == 1]
    same = [similar.diagonal()[alone], *(similar[c][:, c].flatten() for c in rows.values() if len(c) > 1)]
    total, taken = similar.sum(), torch.cat(same)
    count = similar.numel()
    if bool(total.isnan()):
        total, count = similar.nansum(), int((~similar.isnan()).sum())
    pairs = (count - int((~taken.isnan()).sum())) // 2
    return (float(total - taken.nansum()) / 2 / pairs if pairs else float("nan")), pairs
