"""Where the load of one checkpoint moved in another, on the same prompts."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.loads import NO_TOKENS
from analysis.matching import ALONE, Matching, Partners, partners, told, why_alone
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import beyond, beyond_chance
from analysis.outcomes import by_weight, outcomes

DRAWS = 999
Count = Literal["selected", "served"]


@measure(
    title="Load difference",
    question="Which experts do more, or less, of the work in b than in a?",
    unit="difference of load over uniform (b - a; 0 is no difference)",
    family="compare",
    source="Loads: Wang et al. 2024, arXiv 2408.15664; the paired comparison is ours",
    axes=("layer", "expert"),
    reads=("prompt_counts", "token_routes"),
)
def load_difference(a: Inputs, b: Inputs, *, count: Count = "selected", matching: Matching = "identity") -> Values:
    """Load over uniform in b minus that in a, over the prompts both have.

    If a side is fully soft it has no selections: both sides are then compared by combine weight. `co-selection` sets
    an expert of a beside the one of b that takes the same tokens.

    Formula:
        D_e = n_m(e)(b) / mean_j n_j(b) - n_e(a) / mean_j n_j(a)
        n_e: selections of expert e on that side (`served`: those it served), or its sum of combine weights if a
        side is fully soft; m(e): e itself, or its partner in b.

    Returns:
        Layer by expert, -E/k to E/k (-E to E by weight); positive where b gives the expert more. NaN for an expert
        without partner, or where nothing was routed.

    Raises:
        NotComparable: If layers or, for `identity`, numbers of experts differ, or no tokens end together.
        TooFew: If weights have to be compared and a side, an imported trace, carries none.

    Source:
        Wang et al. 2024, arXiv 2408.15664, for the load of each side.

    Caveat:
        Expert 3 of one run is not expert 3 of another: between separately trained checkpoints match experts, or compare
        the shape of a layer, not the number of an expert. Between steps of one run the numbering holds.
    """
    pairs = partners(a, b, matching)
    first, second = outcomes(a, b, pairs, count)
    values = _difference(first.sum(0), second.sum(0), pairs, (a, b))
    facts = told(pairs, matching) | {
        "mean absolute difference": float(values.abs().nanmean()),
        "largest": _largest(values.abs()),
    }
    return Values(values, facts=facts, caveats=_said(a, b, values, pairs))


@load_difference.chance
def null(a: Inputs, b: Inputs, *, count: Count, matching: Matching, generator: torch.Generator) -> Chance:
    """Each prompt's two routings exchanged or not by the toss of a coin, experts paired as they are.

    Returns:
        Differences of load: mean 0 and 95 % band per expert. Facts: `sign-flip p` for the sum of squares of all cells;
        layers whose own sum is beyond the largest of all layers by chance. The p of each cell, corrected for all.

    Source:
        Fisher 1935, paired exchange; p = (1 + draws at least as large) / (1 + draws). Max-statistic over layers, and
        over cells, each in standard deviations: Westfall & Young 1993.
    """
    pairs = partners(a, b, matching)
    first, second = outcomes(a, b, pairs, count)
    size = first.shape[1:]
    swap = torch.randint(0, 2, (DRAWS, len(first)), generator=generator).double()
    moved = (swap @ (second - first).flatten(1)).unflatten(-1, size)
    drawn = _difference(first.sum(0) + moved, second.sum(0) - moved, pairs, (a, b))
    # A coin that falls the other way for every prompt gives the negative: the draws are symmetric about 0.
    half = torch.quantile(drawn.abs(), 0.95, dim=0)
    observed = _difference(first.sum(0), second.sum(0), pairs, (a, b))
    sizes = drawn.square().nansum((-1, -2))
    p = (1 + int((sizes >= observed.square().nansum() - 1e-12).sum())) / (1 + DRAWS)
    how = f"{DRAWS} random exchanges of the two sides within each of {len(first)} prompts"
    by_cell = beyond_chance(observed.abs().flatten(), drawn.abs().flatten(1)).view_as(observed)
    by_layer = beyond_chance(observed.square().nansum(-1), drawn.square().nansum(-1))
    layers, _ = beyond(by_layer)
    facts = {"layers that differ beyond chance (max-statistic)": f"{layers} of {len(by_layer)}", "sign-flip p": p}
    return Chance(torch.zeros_like(half), -half, half, how, facts, by_cell)


def _difference(
    first: Float[Tensor, "*case layer outcome"],
    second: Float[Tensor, "*case layer outcome"],
    pairs: Partners,
    sides: tuple[Inputs, Inputs],
) -> Float[Tensor, "*case layer expert"]:
    # The last two outcomes are of experts without partner: part of a side's work, and nobody's load.
    loads = [
        counts[..., :-2] / counts.sum(-1, keepdim=True) * side.shape.experts
        for counts, side in zip((first, second), sides, strict=True)
    ]
    return (loads[1] - loads[0]).masked_fill(pairs == ALONE, torch.nan)


def _said(a: Inputs, b: Inputs, values: Float[Tensor, "layer expert"], pairs: Partners) -> tuple[str, ...]:
    notes = [*why_alone(pairs == ALONE), *by_weight(a, b)]
    if not torch.equal(a.prompt_counts["tokens"], b.prompt_counts["tokens"]):
        notes.append("The two sides cut the prompts into different numbers of tokens.")
    if bool((values.isnan() & (pairs != ALONE)).any()):
        notes.append(NO_TOKENS)
    return tuple(notes)


def _largest(values: Float[Tensor, "layer expert"]) -> float:
    known = values[~values.isnan()]
    return float(known.max()) if len(known) else float("nan")
