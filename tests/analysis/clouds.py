"""Clouds of routed rows with planted axes, as the states that measures of subspaces read."""

import torch

from analysis.linalg import orthonormal
from analysis.slots import BLOCKS, Prompts, Shape, text_digest
from analysis.spec import EMPTY
from analysis.statistic import State

MODEL, N, ROWS = 40, 4, 120
PROMPTS = tuple(f"p{i}" for i in range(32))
HELD = Prompts(PROMPTS, tuple(map(text_digest, PROMPTS)), ("all",) * 32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cloud(axes, seed, rows=ROWS, noise=0.0):
    """Rows that vary along these axes, 5, 4, 3, ... times as much as `noise` in all directions."""
    g = generator(seed)
    scale = torch.arange(len(axes) + 1, 1, -1, dtype=torch.float64)
    x = (torch.randn(rows, len(axes), dtype=torch.float64, generator=g) * scale) @ axes
    return x + noise * torch.randn(rows, axes.shape[1], dtype=torch.float64, generator=g) + 3


def routed(clouds, weights=None, blocks=None):
    """A state of one layer with these rows per expert; NaN places where an expert has fewer."""
    most, experts = max(map(len, clouds)), len(clouds)
    shape = Shape(("0",), experts, 1, clouds[0].shape[1], 8)
    hashes = torch.full((1, experts, most), EMPTY)
    block = torch.full((1, experts, most), -1)
    x = torch.full((1, experts, most, shape.model), torch.nan, dtype=torch.float64)
    g = torch.full((1, experts, most), torch.nan)
    held = torch.tensor(HELD.blocks)
    for e, rows in enumerate(clouds):
        hashes[0, e, : len(rows)] = torch.arange(len(rows)) * experts + e
        block[0, e, : len(rows)] = held[torch.arange(len(rows)) % 32] if blocks is None else blocks[e]
        x[0, e, : len(rows)] = rows
        g[0, e, : len(rows)] = 1.0 if weights is None else weights[e].float()
    served = torch.nn.functional.one_hot(block[0] + 1, BLOCKS + 1).sum(1)[:, 1:].T[:, None]
    arrays = {"hash": hashes, "block": block, "weight": g, "input": x, "served": served, "seen": served.sum(-1)}
    return State("routed_rows", shape, HELD, arrays)


def common(rows, weights=None, shared=0):
    """A state of one layer with these rows as the sample of all tokens, a shared expert's weights beside them."""
    shape = Shape(("0",), 2, 1, rows.shape[1], 8, shared)
    arrays = {
        "hash": torch.arange(len(rows))[None],
        "block": torch.tensor(HELD.blocks)[torch.arange(len(rows)) % 32][None],
        "weight": torch.full((1, len(rows)), torch.nan) if weights is None else weights[None].float(),
    }
    return State("common_rows", shape, HELD, {**arrays, "input": rows[None]})


def span(seed, n=N, model=MODEL):
    return orthonormal(torch.randn(n, model, dtype=torch.float64, generator=generator(seed)))


def rotation(seed, size):
    return orthonormal(torch.randn(size, size, dtype=torch.float64, generator=generator(seed)))
