"""What a format makes of its file: sizes, prompts without texts, and arrays; not yet tied to a prompt set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

ALL = "all"
"""Id of the one prompt of a file that tells no prompts apart."""


@dataclass(frozen=True)
class Draft:
    """A trace in the making.

    Routes are the arrays `prompt` (a row of `ids`), `position`, `role`, `token` (-1 where the file has no token ids),
    `indices` (token, layer, k) and, where the file has combine weights, `weights`. Counts are `selected` (prompt,
    layer, expert) and `tokens` (prompt); with `input` (prompt, layer, expert, model) come sums of routed inputs, with
    `input_square` (the same axes) sums of their squares, channel by channel.
    """

    layers: tuple[str, ...]
    experts: int
    top_k: int
    ids: tuple[str, ...]
    categories: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()
    model: int = 0
