"""By how much a number made of loads differs between two checkpoints, and whether it matters which of them is which."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from analysis.alignment import same_layers
from analysis.loads import NO_TOKENS, layer_counts, over_layers
from analysis.measure import Chance, Inputs, Values
from analysis.nulls import beyond, beyond_chance
from analysis.result import Reason

DRAWS, _DRAWN_NUMBERS = 999, 50_000_000

Number = Callable[[Shaped[Tensor, "... expert"]], Float[Tensor, "*case"]]
"""Of loads along the last axis, blind to which expert has which."""


def difference(a: Inputs, b: Inputs, count: str, made_of: Number) -> Values:
    """The number of each layer of b minus that of a.

    Args:
        a: What one checkpoint brings, `prompt_counts` among it.
        b: The other, over the same prompts.
        count: Which of its counts.
        made_of: The number.

    Returns:
        One difference per layer, NaN where nothing was routed; its mean size and the layer that differs most as facts.

    Raises:
        NotComparable: If layers differ.

    Source:
        Ours.
    """
    same_layers(a, b)
    first, second = (made_of(layer_counts(side.prompt_counts, count)) for side in (a, b))
    values, notes = second - first, []
    facts = over_layers(values.abs(), a.shape.layers, "highest")
    told = {"mean absolute difference": facts.pop("mean over layers")} | facts
    if a.shape.experts != b.shape.experts:
        notes.append(f"a has {a.shape.experts} experts a layer and b {b.shape.experts}: the number has another range.")
    if not torch.equal(a.prompt_counts["tokens"], b.prompt_counts["tokens"]):
        notes.append("The two sides cut the prompts into different numbers of tokens.")
    if bool(values.isnan().any()):
        notes.append(NO_TOKENS)
    return Values(values, facts=told, caveats=tuple(notes))


def exchanged(a: Inputs, b: Inputs, count: str, made_of: Number, generator: torch.Generator) -> Chance | Reason:
    """Where the difference of a number of loads lies if each prompt's two sides are exchanged by the toss of a coin.

    The number does not mind which expert has which load, so experts stand in the order of their load on either side: by
    number, the busy expert of one run would be mixed with an idle one of another.

    Args:
        a: What one checkpoint brings, `prompt_counts` among it.
        b: The other, over the same prompts.
        count: Which of its counts.
        made_of: The number.
        generator: Where the coins come from.

    Returns:
        Mean 0 and 95 % band per layer, either way. Facts: layers that differ beyond the largest of all by chance, and
        the least p; the p of each layer, corrected for all. A `Reason` if the sides have no equal number of experts.

    Source:
        Fisher 1935, paired exchange; max-statistic over layers, each in standard deviations: Westfall & Young 1993.
    """
    if a.shape.experts != b.shape.experts:
        sizes = f"a has {a.shape.experts} experts a layer, b has {b.shape.experts}"
        return Reason(f"{sizes}: what a prompt has on one side cannot stand on the other, so no chance of it is drawn")
    first, second = (_in_order_of_load(side.prompt_counts[count].double()) for side in (a, b))
    draws = min(DRAWS, max(199, _DRAWN_NUMBERS // max(first[0].numel(), 1)))
    swap = torch.randint(0, 2, (draws, len(first)), generator=generator).double()
    moved = (swap @ (second - first).flatten(1)).unflatten(-1, first.shape[1:])
    drawn = made_of(second.sum(0) - moved) - made_of(first.sum(0) + moved)
    observed = made_of(second.sum(0)) - made_of(first.sum(0))
    by_layer = beyond_chance(observed.abs(), drawn.abs())
    # A coin that falls the other way for every prompt gives the negative: the draws are symmetric about 0.
    half = torch.quantile(drawn.abs(), 0.95, dim=0)
    found, p = beyond(by_layer)
    facts = {"layers that differ beyond chance (max-statistic)": f"{found} of {len(by_layer)}", "sign-flip p": p}
    how = f"{draws} random exchanges of the two sides within each of {len(first)} prompts, experts in order of load"
    return Chance(torch.zeros_like(half), -half, half, how, facts, by_layer)


def _in_order_of_load(counts: Float[Tensor, "prompt layer expert"]) -> Float[Tensor, "prompt layer expert"]:
    """The busiest first; equal loads in an order that does not hang on their numbers."""
    total = counts.sum(0)
    place = torch.arange(1, len(counts) + 1, dtype=torch.float64)
    weighed = torch.einsum("p,ple->le", place / (len(counts) + 1), counts)
    order = (total + weighed / (total.sum(-1, keepdim=True) + 1)).argsort(-1, descending=True)
    return counts.gather(-1, order.expand(len(counts), -1, -1))
