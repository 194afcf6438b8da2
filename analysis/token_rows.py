"""States kept token by token: rows keyed by prompt and position, united when two are merged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor

STRETCHES = 8
"""Each prompt's tokens fall into so many stretches of neighbours, as even as can be."""


def united(
    left: Mapping[str, Tensor], right: Mapping[str, Tensor], rows: tuple[list[int], list[int]]
) -> dict[str, Shaped[Tensor, "token ..."]]:
    """Both sides' tokens by prompt and position; a token that both hold is kept once.

    Args:
        left: Arrays with the axis "token" first, `prompt` and `position` among them.
        right: The other side's.
        rows: Where each side's prompts stand among the prompts of both.

    Returns:
        The same arrays for all tokens.

    Source:
        Ours: one order, whatever the order of merging.
    """
    moved = [
        {**side, "prompt": torch.tensor(place, dtype=torch.int64)[side["prompt"]]}
        for side, place in ((left, rows[0]), (right, rows[1]))
    ]
    return _ordered({name: torch.cat([side[name] for side in moved]) for name in left})


def of_prompts(arrays: Mapping[str, Tensor], rows: list[int]) -> dict[str, Shaped[Tensor, "token ..."]]:
    """The tokens of these prompts only, which are then numbered in this order.

    Returns:
        The same arrays, by prompt and position.

    Source:
        Ours.
    """
    most = int(arrays["prompt"].max()) if len(arrays["prompt"]) else -1
    place = torch.full((max([most, *rows]) + 1,), -1, dtype=torch.int64)
    place[rows] = torch.arange(len(rows))
    prompt = place[arrays["prompt"]]
    kept = prompt >= 0
    return _ordered({name: (prompt if name == "prompt" else array)[kept] for name, array in arrays.items()})


def without_stretch(arrays: Mapping[str, Tensor], stretch: int) -> dict[str, Shaped[Tensor, "token ..."]]:
    """All tokens but this stretch of each prompt.

    Args:
        arrays: Arrays with the axis "token" first, by prompt and position.
        stretch: 0 to STRETCHES - 1.

    Returns:
        The same arrays; a prompt of fewer tokens than stretches lacks some of these.

    Source:
        Ours; stretches, since neighbouring tokens are alike: Kuensch 1989.
    """
    prompt = arrays["prompt"]
    sizes = torch.bincount(prompt)
    place = torch.arange(len(prompt)) - (sizes.cumsum(0) - sizes)[prompt]
    kept = place * STRETCHES // sizes[prompt] != stretch
    return {name: array[kept] for name, array in arrays.items()}


def _ordered(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    order = arrays["position"].argsort(stable=True)
    order = order[arrays["prompt"][order].argsort(stable=True)]
    prompt, position = arrays["prompt"][order], arrays["position"][order]
    fresh = torch.ones_like(order, dtype=torch.bool)
    fresh[1:] = (prompt[1:] != prompt[:-1]) | (position[1:] != position[:-1])
    order = order[fresh]
    return {name: array[order] for name, array in arrays.items()}
