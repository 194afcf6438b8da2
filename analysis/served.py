"""The served pairs of token and expert, a few at a time: where sums over what experts saw in flight begin."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.precision import working_dtype
from analysis.slots import BLOCKS, LayerBatch, block_of_token

_ROWS = 256
"""Pairs at a time: what is made of them stays in the cache, which takes half the time of all at once."""

Part = tuple[
    Int[Tensor, " pair"],
    Float[Tensor, "pair hidden"] | None,
    Float[Tensor, "pair hidden"],
]


def served_pairs(batch: LayerBatch) -> tuple[Int[Tensor, "block expert"], Iterator[Part]]:
    """How many pairs each block of prompts has with each expert, and their pre-activations.

    Returns:
        Counts; then parts of up to 256 pairs: the cell of each (block x experts + expert), what went into its gate
        (None for experts without one) and into its up projection, in the precision to sum in.

    Source:
        Ours: selections that were dropped, and identity experts, are nobody's.
    """
    assert batch.experts is not None and batch.up_in is not None
    experts = batch.shape.experts
    pairs = (batch.served & (batch.indices < experts)).flatten().nonzero()[:, 0]
    block = block_of_token(batch.prompts, batch.keys)[:, None].expand_as(batch.indices)
    cells = (block * experts + batch.indices).flatten()[pairs]
    counts = torch.bincount(cells, minlength=BLOCKS * experts).view(BLOCKS, experts)
    return counts, _parts(batch, pairs, cells)


def _parts(batch: LayerBatch, pairs: Int[Tensor, " pair"], cells: Int[Tensor, " pair"]) -> Iterator[Part]:
    assert batch.experts is not None and batch.up_in is not None
    dtype, up = working_dtype(batch.experts[0].up), batch.up_in.flatten(0, 1)
    gate = None if batch.gate_in is None else batch.gate_in.flatten(0, 1)
    for rows, mine in zip(pairs.split(_ROWS), cells.split(_ROWS), strict=True):
        yield mine, None if gate is None else gate[rows].to(dtype), up[rows].to(dtype)
