"""Samples of tokens that do not depend on order: the bottom n by a seeded hash of prompt id, digest and position.

The same keys are kept whatever the order of batches and shards, so a sample of a merge is the merge of samples, and a
token seen twice is kept once. A statistic with a sample declares, all with `merge="sample"`, an int64 array `hash` of
axes (cell ..., n), an int64 `block` like it (so that a block of prompts can be left out), and companions of axes
(cell ..., n, ...). Places are in the order of the hash, empty ones last: `hash` EMPTY, companions NaN or -1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from analysis.slots import Prompts, TokenKeys
from analysis.spec import EMPTY, Spec

ROWS = 256
"""Rows kept per expert unless a statistic says otherwise."""


def token_hash(prompts: Prompts, keys: TokenKeys, seed: int = 0) -> Int[Tensor, " token"]:
    """A hash of each token's prompt (id and digest of the text) and position, the same on any day and machine.

    Returns:
        0 to 2^63 - 2, uniform.

    Source:
        Prompt: SHA-256. Position: the finaliser of SplitMix64 (Steele, Lea & Flood 2014).
    """
    starts = [int.from_bytes(hashlib.sha256(repr((seed, *key)).encode()).digest()[:8], "big") for key in prompts.keys]
    start = torch.tensor([_signed(s) for s in starts], dtype=torch.int64, device=keys.prompt.device)
    state = start[keys.prompt] + (keys.position.long() + 1) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ _right(state, shift)) * _signed(factor)
    return (_right(state ^ _right(state, 31), 1)).clamp(max=EMPTY - 1)


def bottom(hash: Int[Tensor, " row"], cell: Int[Tensor, " row"], cells: int, n: int) -> Int[Tensor, "cells n"]:
    """Which rows have the n smallest hashes of each cell, smallest first; rows of a negative cell belong to none.

    Returns:
        Indices of rows; -1 for a place that stays empty. Of rows with the same cell and hash one is kept.

    Source:
        Bottom-k sketches: Cohen & Kaplan 2007.
    """
    rows = torch.full((cells, n), -1, dtype=torch.int64, device=hash.device)
    order = hash.argsort(stable=True)
    order = order[cell[order].argsort(stable=True)]
    order = order[cell[order] >= 0]
    if not len(order):
        return rows
    sorted_cell, sorted_hash = cell[order], hash[order]
    fresh = torch.ones_like(order, dtype=torch.bool)
    fresh[1:] = (sorted_cell[1:] != sorted_cell[:-1]) | (sorted_hash[1:] != sorted_hash[:-1])
    order, sorted_cell = order[fresh], sorted_cell[fresh]
    first = torch.searchsorted(sorted_cell, torch.arange(cells, dtype=sorted_cell.dtype, device=cell.device))
    place = torch.arange(len(order), device=order.device) - first[sorted_cell]
    kept = place < n
    rows[sorted_cell[kept], place[kept]] = order[kept]
    return rows


def rows_at(values: Shaped[Tensor, "row ..."], rows: Int[Tensor, "*cells"], fill: float | int) -> Tensor:
    """The values of these rows, `fill` where a place is empty (-1): from `bottom` to a companion array.

    Returns:
        As `rows`, with the remaining axes of `values` behind.

    Source:
        Ours.
    """
    empty = rows < 0
    if not len(values):
        return torch.full((*rows.shape, *values.shape[1:]), fill, dtype=values.dtype, device=values.device)
    found = values[rows.clamp(min=0)]
    found[empty] = fill
    return found


def merged(left: Mapping[str, Tensor], right: Mapping[str, Tensor], specs: Mapping[str, Spec]) -> dict[str, Tensor]:
    """The sample of both samples' tokens.

    Returns:
        All arrays of the sample: hash, block and companions.

    Source:
        Ours: the smallest of a union are among the smallest of its parts.
    """
    axis = left["hash"].dim() - 1
    both = {name: torch.cat([left[name], right[name]], axis) for name in left}
    return _settled(both, left["hash"].shape[-1], specs)


def without(arrays: Mapping[str, Tensor], block: int, specs: Mapping[str, Spec]) -> dict[str, Tensor]:
    """The sample without the rows of this block; its places are not filled from tokens that were not kept.

    Returns:
        All arrays of the sample, places closed up.

    Source:
        Ours: as if never seen, as long as the sample is not full.
    """
    kept = arrays["hash"].masked_fill(arrays["block"] == block, EMPTY)
    return _settled({**arrays, "hash": kept}, kept.shape[-1], specs)


def _settled(arrays: Mapping[str, Tensor], n: int, specs: Mapping[str, Spec]) -> dict[str, Tensor]:
    """The n smallest distinct hashes of each cell, and what belongs to them."""
    hashes, order = arrays["hash"].sort(dim=-1, stable=True)
    twice = torch.zeros_like(hashes, dtype=torch.bool)
    twice[..., 1:] = hashes[..., 1:] == hashes[..., :-1]
    hashes, again = hashes.masked_fill(twice, EMPTY).sort(dim=-1, stable=True)
    order, empty = order.gather(-1, again)[..., :n], hashes[..., :n] == EMPTY
    found = {"hash": hashes[..., :n].contiguous()}
    axis = order.dim() - 1
    for name, array in arrays.items():
        if name == "hash":
            continue
        trailing = array.shape[axis + 1 :]
        wide = order.reshape(*order.shape, *(1 for _ in trailing)).expand(*order.shape, *trailing)
        found[name] = array.gather(axis, wide)
        found[name][empty] = specs[name].nothing(name)
    return found


def _signed(number: int) -> int:
    """The same 64 bits as a signed integer, which is what torch multiplies."""
    return number - 2**64 if number >= 2**63 else number


def _right(bits: Tensor, shift: int) -> Tensor:
    """Shift that brings in zeros; torch's own repeats the sign."""
    return (bits >> shift) & ((1 << (64 - shift)) - 1)
