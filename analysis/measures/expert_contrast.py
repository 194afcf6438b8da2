"""Which experts are tied to one kind of prompt rather than to another, beyond what chance among all of them gives."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from scipy.stats import false_discovery_control, norm
from torch import Tensor

from analysis.effect import shuffled
from analysis.errors import BadKnob, TooFew
from analysis.knob import Range
from analysis.measure import Chance, Values, measure
from analysis.statistic import State

DRAWS = 999
LEVEL = 0.05
OTHERS = -1
Rows = Bool[Tensor, " prompt"]


@measure(
    title="Expert contrast",
    question="Which experts does one kind of prompt use more than another?",
    unit="difference of shares of tokens (-1 to 1; positive: the first kind uses it more)",
    family="specialisation",
    source="Risk difference: SteerMoE 2025, arXiv 2509.09660; max-statistic null: Westfall & Young 1993",
    axes=("layer", "expert"),
    needs_selection=True,
)
def expert_contrast(
    prompt_counts: State, *, first: Annotated[int, Range(0)] = 0, second: Annotated[int, Range(-1)] = 1
) -> Values:
    """The share of the first category's tokens that selected the expert, minus that of the second's.

    Categories count from 0 in alphabetical order; `second` = -1 is all others together.

    Formula:
        D_e = N_e1 / T_1 - N_e2 / T_2
        N_ec: tokens of category c that selected expert e; T_c: all tokens of category c; 1 and 2 as `first` and
        `second` name.

    Returns:
        Layer by expert, -1 to 1; 0 where both use it alike. NaN if a category has no tokens.

    Raises:
        BadKnob: If `first` is below 0, `second` below -1, or both name the same.
        TooFew: If there are not two categories.

    Source:
        The `Delta = p1 - p2` of SteerMoE 2025, arXiv 2509.09660.

    Caveat:
        An association, not a cause: the words, the length and the format of two kinds of prompt differ too. The band
        holds the largest of all experts under shuffled labels, so one expert beyond it is already a finding.
    """
    one, other, said = _chosen(prompt_counts, first, second)
    values = _differences(prompt_counts, one[None], other[None])[0]
    facts: dict[str, int | float | str] = {"first": said[0], "second": said[1]}
    if not bool(values.isnan().any()):
        facts |= {f"most of the {nth}": _named(v, prompt_counts) for nth, v in (("first", values), ("second", -values))}
    caveats = _in_one_block(prompt_counts)
    if bool(values.isnan().any()):
        caveats += ("NaN: one of the two categories has no routed token.",)
    return Values(values, facts=facts, caveats=caveats)


@expert_contrast.chance
def null(prompt_counts: State, *, first: int, second: int, generator: torch.Generator) -> Chance:
    """The labels of the two kinds shuffled over their prompts; the band is that of the largest difference of all.

    Returns:
        Mean 0, and the 95 % point of the largest absolute difference as one band for all experts. Facts: how many
        experts lie beyond it, the p of the largest, and how many pass at a false discovery rate of 5 %.

    Source:
        Westfall & Young 1993 (max statistic); Benjamini & Hochberg 1995 over normal p-values with the spread that
        shuffling gives each expert.
    """
    one, other, _ = _chosen(prompt_counts, first, second)
    rows = (one | other).nonzero()[:, 0]
    ones = torch.zeros(DRAWS + 1, len(one), dtype=torch.long)
    ones[:, rows] = torch.cat([one[rows].long()[None], shuffled(one[rows].long(), DRAWS, generator)])
    drawn = _differences(prompt_counts, ones.bool(), (one | other) & ~ones.bool())
    observed, largest = drawn[0], drawn.abs().flatten(1).amax(-1)
    half = torch.quantile(largest[1:], 1 - LEVEL)
    found = {
        "experts beyond the band": int((observed.abs() > half).sum()),
        "p of the largest": math.nan if half.isnan() else float((largest >= largest[0] - 1e-12).double().mean()),
        "experts at 5 % false discovery rate": _discoveries(observed, drawn[1:].std(0)),
    }
    how = f"{DRAWS} random permutations of the two labels over prompts, largest of {observed.numel()} differences"
    return Chance(torch.zeros_like(half), -half, half, how, found)


def _chosen(state: State, first: int, second: int) -> tuple[Rows, Rows, tuple[str, str]]:
    if first == second:
        raise BadKnob(f"first={first}, second={second}; name two different categories, or second=-1 for all others")
    names = sorted(set(state.prompts.categories))
    if len(names) < 2 or max(first, second) >= len(names):
        raise TooFew(f"first={first}, second={second}, of {len(names)} categories: {', '.join(names) or 'none'}")
    one, other = (torch.tensor([c == names[n] for c in state.prompts.categories]) for n in (first, second))
    return (
        (one, ~one, (names[first], "all others")) if second == OTHERS else (one, other, (names[first], names[second]))
    )


def _differences(
    state: State, one: Bool[Tensor, "draw prompt"], other: Bool[Tensor, "draw prompt"]
) -> Float[Tensor, "draw layer expert"]:
    selected, tokens = state["selected"].double(), state["tokens"].double()
    shares = [
        (rows.double() @ selected.flatten(1) / (rows.double() @ tokens)[:, None]).unflatten(-1, selected.shape[1:])
        for rows in (one, other)
    ]
    return shares[0] - shares[1]


def _discoveries(observed: Float[Tensor, "layer expert"], spread: Float[Tensor, "layer expert"]) -> int:
    # An expert that no labelling tells apart has no spread and no p below 1.
    told = (spread > 0) & ~observed.isnan()
    if not bool(told.any()):
        return 0
    p = 2 * norm.sf((observed.abs() / spread)[told].numpy())
    return int((false_discovery_control(p) <= LEVEL).sum())


def _in_one_block(state: State) -> tuple[str, ...]:
    found: dict[str, set[int]] = {}
    for category, block in zip(state.prompts.categories, state.prompts.blocks, strict=True):
        found.setdefault(category, set()).add(block)
    alone = sorted(name for name, blocks in found.items() if len(blocks) == 1)
    return (f"All prompts of {', '.join(alone)} lie in one block: do not trust the interval.",) if alone else ()


def _named(values: Float[Tensor, "layer expert"], state: State) -> str:
    layer, expert = divmod(int(values.flatten().argmax()), values.shape[-1])
    return f"layer {state.shape.layers[layer]} E{expert}"
