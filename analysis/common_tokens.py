"""The common token set: the tokens on which every expert is asked, whether they chose it or not.

Rule: a token belongs to it when its hash (`analysis.sampling.token_hash`: prompt id, digest, position, seed 0) falls
into the lowest 1 in `ONE_IN` of all hashes. So the set is the same for any order or cut of the tokens, and all experts
of all layers are compared on the same ones. Asking every expert about every token would cost E/k forward passes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from analysis.sampling import token_hash
from analysis.slots import LayerBatch

ONE_IN = 8
"""One token in this many is common."""

_CHUNK = 256  # tokens at a time: their outputs of all experts are held at once


def common_tokens(batch: LayerBatch) -> tuple[Int[Tensor, " common"], Int[Tensor, " common"]]:
    """Which tokens of a batch are common, and their hashes.

    Returns:
        Rows of the batch, and hashes from 0 to 2^63 / `ONE_IN`.

    Source:
        Ours; threshold sampling by hash: Duffield, Lund & Thorup 2007.
    """
    hashes = token_hash(batch.prompts, batch.keys)
    rows = (hashes < 2**63 // ONE_IN).nonzero()[:, 0]
    return rows, hashes[rows]


def chunks(rows: Int[Tensor, " row"]) -> Iterator[Int[Tensor, " part"]]:
    """The rows a few at a time.

    Returns:
        At most 256 of them each time, none for no rows.

    Source:
        Ours.
    """
    return iter(torch.split(rows, _CHUNK)) if len(rows) else iter(())
