"""Sides whose tokenizers cut a text differently, brought to the tokens that end at the same character."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from analysis.measure import Inputs
from analysis.statistic import State

ROWS = "token_routes"
KEYS = ("prompt", "position", "token")


def at_common_ends(sides: tuple[Inputs, ...]) -> tuple[tuple[Inputs, ...], tuple[str, ...]]:
    """The rows by token of every side, cut to those that end where a token of each other side ends.

    A token knows the text up to its end, so two that end at one character have read the same. Of several that end there
    (the bytes of one character) the last has. Sides of one tokenizer stay as they are, and so do sides of which no
    token is known to end where another does: what needs the same tokens refuses those.

    Args:
        sides: What each checkpoint brings, over the same prompts in the same order.

    Returns:
        The sides, and a caveat that counts what was cut (empty if nothing was).

    Source:
        Ours.
    """
    states = [side.states[ROWS] for side in sides if ROWS in side.states]
    if len(states) < 2 or all(_same(states[0], other) for other in states[1:]):
        return sides, ()
    ends = [_ends(state) for state in states]
    shared = ends[0][0]
    for keys, _ in ends[1:]:
        shared = shared[torch.isin(shared, keys)]
    if not len(shared):
        return sides, ()
    kept = iter([rows[torch.isin(keys, shared)] for keys, rows in ends])
    found = tuple(_cut(side, next(kept)) if ROWS in side.states else side for side in sides)
    counts = ", ".join(f"{len(state['position']):,}" for state in states)
    return found, (
        f"The sides cut the prompts into different tokens ({counts}): what is compared token by token, and what pairs "
        f"experts by co-selection, reads the {len(shared):,} that end at the same character on every side.",
    )


def same_ends(a: State, b: State) -> bool:
    """Whether the rows of both are the same tokens, or tokens that end at the same characters.

    Returns:
        True if each row of a stands beside its own of b.

    Source:
        Ours.
    """
    if _same(a, b):
        return True
    keys = [state["prompt"] * _BEYOND + state["end"] for state in (a, b)]
    return torch.equal(*keys) and bool((a["end"] >= 0).all())


_BEYOND = 2**32
"""More characters than a prompt has."""


def _same(a: State, b: State) -> bool:
    return all(torch.equal(a[name], b[name]) for name in KEYS)


def _ends(state: State) -> tuple[Int[Tensor, " end"], Int[Tensor, " end"]]:
    """Where tokens end, prompt by prompt, each place once; and the row of the last token that ends there."""
    keys = state["prompt"] * _BEYOND + state["end"]
    rows = (state["end"] >= 0).nonzero()[:, 0]
    found, place = keys[rows].unique(return_inverse=True)
    last = torch.zeros_like(found).scatter_reduce(0, place, rows, "amax", include_self=False)
    return found, last


def _cut(side: Inputs, rows: Int[Tensor, " row"]) -> Inputs:
    state = side.states[ROWS]
    cut = replace(state, arrays={name: array[rows] for name, array in state.arrays.items()})
    return replace(side, states={**side.states, ROWS: cut})
