"""How far the busiest expert of a layer lies above an equal share."""

from __future__ import annotations

from typing import Literal

import torch

from analysis.loads import idle, layer_counts, over_layers, violation
from analysis.measure import Chance, Values, measure
from analysis.nulls import uniform_loads
from analysis.result import Reason
from analysis.statistic import State

DRAWS = 2000


@measure(
    title="Load violation (MaxVio)",
    question="How unbalanced is the busiest expert of each layer?",
    unit="excess over an equal share (0 to E/k - 1; 0 is balanced)",
    family="routing",
    source="Wang et al. 2024, arXiv 2408.15664 (MaxVio, over all tokens asked about)",
    axes=("layer",),
    needs_selection=True,
)
def load_violation(prompt_counts: State, *, count: Literal["selected", "served"] = "selected") -> Values:
    """MaxVio per layer: (max load - mean load) / mean load, over all tokens of the prompts together.

    Returns:
        One number per layer, 0 to E/k - 1.

    Source:
        Wang et al. 2024, arXiv 2408.15664.

    Caveat:
        A finite sample of perfectly balanced routing is not 0: read it against the floor, which falls with the number
        of tokens. MaxVio of a batch and of a whole validation set are different numbers.
    """
    counts = layer_counts(prompt_counts, count)
    values = violation(counts)
    facts, caveats = idle(counts)
    return Values(
        values, facts={**over_layers(values, prompt_counts.shape.layers, "highest"), **facts}, caveats=caveats
    )


@load_violation.chance
def null(prompt_counts: State, *, count: str, generator: torch.Generator) -> Chance | Reason:
    """The floor: MaxVio of blind routing of as many tokens.

    Returns:
        Mean, 0 and the 95 % point, the same for every layer.

    Source:
        Ours: 2,000 exact draws of k distinct experts per token.
    """
    tokens = int(prompt_counts["tokens"].sum())
    if not tokens:
        return Reason("no token was routed")
    shape = prompt_counts.shape
    drawn = violation(uniform_loads(torch.full((DRAWS,), tokens), shape.top_k, shape.experts, generator))
    how = (
        f"{DRAWS:,} simulations of uniform routing of {tokens} independent tokens to {shape.top_k} distinct experts; "
        "one-sided: 95 % of them lie below the upper bound, the lower bound is perfect balance"
    )
    return Chance(drawn.mean(), torch.zeros_like(drawn[0]), torch.quantile(drawn, 0.95), how)
