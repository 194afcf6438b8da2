"""Token ids against the expert each token ranks first: tables of counts, and the same tables under shuffled ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from analysis.errors import TooFew
from analysis.knob import Range
from analysis.nulls import central_band
from analysis.statistic import State

Which = Literal["input", "next", "predicted"]
Often = Annotated[int, Range(1)]
COLUMN = {"input": "token", "next": "next", "predicted": "predicted"}
DRAWS, FEWEST_DRAWS, COUNTED = 99, 39, 2e8


@dataclass(frozen=True)
class Vocabulary:
    """Tokens whose id occurs often enough: prompt, the id's place among those kept, the first expert in each layer.

    The expert is E, one more than there are, where the token chose identity experts only.
    """

    prompt: Int[Tensor, " token"]
    id: Int[Tensor, " token"]
    expert: Int[Tensor, "token layer"]
    ids: int
    experts: int

    def tables(self, order: Int[Tensor, " token"] | None = None) -> Int[Tensor, "layer id expert"]:
        """Tokens of each id that ranked each expert first, layer by layer; ids dealt out in this order if given."""
        ids, width = (self.id if order is None else self.id[order]), self.experts + 1
        layers = self.expert.shape[1]
        cell = (torch.arange(layers) * self.ids + ids[:, None]) * width + self.expert
        counts = torch.bincount(cell.flatten(), minlength=layers * self.ids * width)
        return counts.view(layers, self.ids, width)[..., : self.experts]

    def told_apart(self, codes: Int[Tensor, " prompt"], categories: int) -> Vocabulary:
        """The same tokens, an id in prompts of one category being another id than in those of another."""
        return replace(self, id=self.id * categories + codes[self.prompt], ids=self.ids * categories)


def vocabulary(routes: State, which: Which, min_count: int) -> Vocabulary:
    """The tokens that have an id of this kind which occurs `min_count` times or more.

    The first expert is the one with the largest combine weight, since some routers list their choices unsorted.

    Returns:
        Possibly no token at all.

    Raises:
        TooFew: If the routes carry no ids of this kind, as those of an imported trace may not.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060 (ids against the first-ranked expert).
    """
    # A token's next is one of the tokens: a prompt of one token has none, and that is no lack.
    carried = "predicted" if which == "predicted" else "token"
    if len(routes[carried]) and bool((routes[carried] < 0).all()):
        raise TooFew(f"these routes carry no {'ids of predicted tokens' if which == 'predicted' else 'token ids'}")
    experts, ids = routes.shape.experts, routes[COLUMN[which]].long()
    # A prompt's last token has no next.
    known, place, count = ids.unique(return_inverse=True, return_counts=True)
    often = (count >= min_count) & (known >= 0)
    number = torch.where(often, often.cumsum(0) - 1, -1)
    kept = number[place] >= 0
    indices, weights = routes["indices"][kept].long(), routes["weights"][kept].float()
    real = torch.where(indices < experts, weights.nan_to_num(nan=-1.0), -2.0)
    best = real.argmax(-1, keepdim=True)
    first = indices.gather(-1, best)[..., 0].clamp(max=experts)
    return Vocabulary(routes["prompt"][kept], number[place][kept], first, int(often.sum()), experts)


def draws_of(words: Vocabulary) -> int:
    """How many shuffled worlds are worth their time.

    Returns:
        `DRAWS`, fewer for many tokens, at least `FEWEST_DRAWS`.

    Source:
        Ours.
    """
    return int(min(DRAWS, max(FEWEST_DRAWS, COUNTED // max(1, words.expert.numel()))))


def shuffled_tables(
    words: Vocabulary, number: Callable[[Int[Tensor, "layer id expert"]], Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, int]:
    """A number of the tables when ids are dealt to the tokens at random.

    Args:
        words: The tokens.
        number: From the tables to one or more numbers per layer.
        generator: Where the orders come from.

    Returns:
        Mean, low and high of the central 95 %, layers first, in the unit of the number; and how many draws.

    Source:
        Fisher 1935: which id stands where says nothing once ids are shuffled, the loads of experts stay.
    """
    tokens, draws = len(words.id), draws_of(words)

    def worlds() -> Iterator[Tensor]:
        for _ in range(draws):
            yield number(words.tables(torch.randperm(tokens, generator=generator)))

    drawn = torch.stack(list(worlds()))
    return drawn.mean(0), *central_band(drawn), draws
