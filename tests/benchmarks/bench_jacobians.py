"""Mean Jacobians and their alignment against automatic differentiation, bare matrix products and a loop of cosines.

One OLMoE layer: model 2048, hidden 1024, 64 experts. Eight experts' weights stand in for 64: they are read in turn, and
no cache holds even one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn import functional as F

from analysis.expert import Expert
from analysis.jacobians import MeanJacobians, cosines, row_products
from tests.benchmarks.case import Case, Race

MODEL, HIDDEN, EXPERTS, TOKENS = 2048, 1024, 64, 512
KEPT = 8
TIMED = 8
EVERY = 16


def silu(gate: Tensor | None, up: Tensor) -> Tensor:
    """OLMoE's gate."""
    assert gate is not None
    return F.silu(gate) * up


def layer() -> tuple[list[Expert], Tensor]:
    """Random experts and their input."""
    generator = torch.Generator().manual_seed(0)
    gate, up = torch.randn(2, KEPT, HIDDEN, MODEL, generator=generator) / MODEL**0.5
    down = torch.randn(KEPT, MODEL, HIDDEN, generator=generator) / HIDDEN**0.5
    experts = [Expert(g, u, d, silu) for g, u, d in zip(gate, up, down, strict=True)]
    return experts, torch.randn(TOKENS, MODEL, generator=generator)


def closed_form(experts: list[Expert], x: Tensor, count: int) -> Iterator[Tensor]:
    """Our mean Jacobians, one at a time."""
    for index in range(count):
        e = experts[index % KEPT]
        assert e.gate is not None
        gate_slope, up_slope = e.slopes(x)
        assert gate_slope is not None
        yield MeanJacobians(e.gate[None], e.up[None], e.down[None], gate_slope[None], up_slope[None]).dense(0)


def differentiated() -> Race:
    """64 x 512 token-experts, of which the other side does 8 and is multiplied."""
    experts, x = layer()
    few = x[:TIMED]

    def ours() -> Tensor:
        # The answer of few tokens, to be compared; its cost is a 64th part of the rest.
        for _ in closed_form(experts, x, EXPERTS):
            pass
        return next(closed_form(experts, few, 1))

    def other() -> Tensor:
        return vmap(jacrev(lambda row: experts[0](row[None])[0]))(few).mean(0)

    return Race(ours, other, close, times=EXPERTS * TOKENS / TIMED)


def inner(expert: Expert, x: Tensor) -> Tensor:
    """diag(mean silu'(z) u) gate + diag(mean silu(z)) up, z and u what gate and up make of x: written out by hand."""
    assert expert.gate is not None
    z, u = x @ expert.gate.mT, x @ expert.up.mT
    s = z.sigmoid()
    by_gate, by_up = (s * (1 + z * (1 - s)) * u).mean(0), (s * z).mean(0)
    return by_gate[:, None] * expert.gate + by_up[:, None] * expert.up


def products() -> Race:
    """The least that the closed form needs: X gate', X up', down A. A is formed outside the clock."""
    experts, x = layer()
    within = [inner(expert, x) for expert in experts]

    def ours() -> Tensor:
        return last(closed_form(experts, x, EXPERTS))

    def other() -> Tensor:
        return last(bare(experts, within, x))

    # Entries are some 0.006; the two forms are 6e-9 apart.
    return Race(ours, other, lambda mine, theirs: close(mine, theirs, 1e-6))


def bare(experts: list[Expert], within: list[Tensor], x: Tensor) -> Iterator[Tensor]:
    """The three products of every expert, the mean Jacobian being the last of them."""
    for index in range(EXPERTS):
        expert = experts[index % KEPT]
        assert expert.gate is not None
        torch.mm(x, expert.gate.mT)
        torch.mm(x, expert.up.mT)
        yield torch.mm(expert.down, within[index % KEPT])


def last(each: Iterator[Tensor]) -> Tensor:
    """All of them made in turn; one is held."""
    return deque(each, maxlen=1)[0]


def alignment() -> Race:
    """All 2,016 pairs of 64 formed mean Jacobians; the loop does every 16th pair and is multiplied."""
    flat = torch.randn(EXPERTS, MODEL * MODEL, generator=torch.Generator().manual_seed(0))
    flat[1] += flat[0]
    pairs = [(i, j) for i in range(EXPERTS) for j in range(i)][::EVERY]

    def ours() -> Tensor:
        found = cosines(row_products(flat))
        return torch.stack([found[i, j] for i, j in pairs])

    def other() -> Tensor:
        return torch.stack([F.cosine_similarity(flat[i], flat[j], dim=0) for i, j in pairs])

    # The loop sums four million float32 products in one go: it is off by 2e-4, ours by 1e-7.
    return Race(ours, other, lambda mine, theirs: close(mine, theirs, 5e-4), times=EVERY)


def close(mine: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """float32: sums of thousands of products apart."""
    torch.testing.assert_close(mine.float(), theirs.float(), rtol=tolerance, atol=tolerance)


CASES = (
    Case(
        "mean Jacobians, 64 experts x 512 tokens",
        f"vmap(jacrev), {TIMED} token-experts timed, the rest extrapolated",
        1000.0,
        differentiated,
        3,
    ),
    Case("mean Jacobians beside their products alone", "its bare matrix products", 1.5, products, 3, overhead=True),
    Case("alignment of all pairs, 64 experts", "loop of cosine similarities, every 16th pair", 50.0, alignment, 3),
)
