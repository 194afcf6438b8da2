"""Where the load of one checkpoint moved in another, on the same prompts."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.errors import NotComparable, TooFew
from analysis.loads import NO_TOKENS, relative
from analysis.measure import Chance, Inputs, Values, measure
from analysis.statistic import State

DRAWS = 999
Count = Literal["selected", "served"]


@measure(
    title="Load difference",
    question="Which experts do more, or less, of the work in b than in a?",
    unit="difference of load over uniform (b - a; 0 is no difference)",
    family="compare",
    source="Loads: Wang et al. 2024, arXiv 2408.15664; the paired comparison is ours",
    axes=("layer", "expert"),
    reads=("prompt_counts",),
)
def load_difference(a: Inputs, b: Inputs, *, count: Count = "selected") -> Values:
    """Load over uniform in b minus that in a, over the prompts both have.

    If a side is fully soft it has no selections: both sides are then compared by combine weight.

    Formula:
        D_e = n_e(b) / mean_j n_j(b) - n_e(a) / mean_j n_j(a)
        n_e: selections of expert e on that side (`served`: those it served), or its sum of combine weights if a
        side is fully soft.

    Returns:
        Layer by expert, -E/k to E/k (-E to E by weight); positive where b gives the expert more.

    Raises:
        NotComparable: If layers or numbers of experts differ.
        TooFew: If weights have to be compared and a side, an imported trace, carries none.

    Source:
        Wang et al. 2024, arXiv 2408.15664, for the load of each side.

    Caveat:
        Expert 3 of one run is not expert 3 of another: between separately trained checkpoints compare the shape of a
        layer, not the number of an expert. Between steps of one run the numbering holds.
    """
    first, second = _sides(a, b, count)
    values = relative(second.sum(0)) - relative(first.sum(0))
    facts = {"mean absolute difference": float(values.abs().nanmean()), "largest": _largest(values.abs())}
    return Values(values, facts=facts, caveats=_said(a, b, values))


@load_difference.chance
def null(a: Inputs, b: Inputs, *, count: Count, generator: torch.Generator) -> Chance:
    """Each prompt's two routings exchanged or not by the toss of a coin.

    Returns:
        Differences of load: mean 0 and 95 % band per expert; fact `sign-flip p` for the sum of squares of all cells.

    Source:
        Fisher 1935, paired exchange; p = (1 + draws at least as large) / (1 + draws).
    """
    first, second = _sides(a, b, count)
    size = first.shape[1:]
    swap = torch.randint(0, 2, (DRAWS, len(first)), generator=generator).double()
    moved = (swap @ (second - first).flatten(1)).unflatten(-1, size)
    drawn = relative(second.sum(0) - moved) - relative(first.sum(0) + moved)
    # A coin that falls the other way for every prompt gives the negative: the draws are symmetric about 0.
    half = torch.quantile(drawn.abs(), 0.95, dim=0)
    observed = relative(second.sum(0)) - relative(first.sum(0))
    sizes = drawn.square().nansum((-1, -2))
    p = (1 + int((sizes >= observed.square().nansum() - 1e-12).sum())) / (1 + DRAWS)
    how = f"{DRAWS} random exchanges of the two sides within each of {len(first)} prompts"
    return Chance(torch.zeros_like(half), -half, half, how, {"sign-flip p": p})


def _sides(
    a: Inputs, b: Inputs, count: Count
) -> tuple[Float[Tensor, "prompt layer expert"], Float[Tensor, "prompt layer expert"]]:
    if a.shape.layers != b.shape.layers:
        raise NotComparable(f"a has MoE layers {list(a.shape.layers)}, b has {list(b.shape.layers)}")
    if a.shape.experts != b.shape.experts:
        raise NotComparable(f"a has {a.shape.experts} experts a layer, b has {b.shape.experts}")
    array = "weights" if a.shape.soft or b.shape.soft else count
    sides: tuple[State, State] = (a.prompt_counts, b.prompt_counts)
    if any(bool(side[array].isnan().any()) for side in sides):
        raise TooFew(
            "one side is fully soft and is counted by combine weight, which the other side's routes do not carry"
        )
    return sides[0][array].double(), sides[1][array].double()


def _said(a: Inputs, b: Inputs, values: Float[Tensor, "layer expert"]) -> tuple[str, ...]:
    notes = []
    if a.shape.soft or b.shape.soft:
        soft = " and ".join(name for name, side in (("a", a), ("b", b)) if side.shape.soft)
        notes.append(f"By combine weight on both sides: {soft} uses every expert for every token and selects none.")
    if not torch.equal(a.prompt_counts["tokens"], b.prompt_counts["tokens"]):
        notes.append("The two sides cut the prompts into different numbers of tokens.")
    if bool(values.isnan().any()):
        notes.append(NO_TOKENS)
    return tuple(notes)


def _largest(values: Float[Tensor, "layer expert"]) -> float:
    known = values[~values.isnan()]
    return float(known.max()) if len(known) else float("nan")
