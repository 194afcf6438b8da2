"""What a router's selection bias does: how far it spreads, and which selections it changes."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.certainty import HIDDEN
from analysis.knob import Range
from analysis.loads import over_layers
from analysis.measure import Values, measure
from analysis.statistic import State

NO_BIAS = "NaN: the router adds no bias to its scores."


@measure(
    title="Selection bias",
    question="How hard does the balancing bias push, and which choices does it change?",
    unit="share of selections (flips, 0 to 1), or score units (spread, sd; 0 or more)",
    family="router",
    source="Wang et al. 2024, arXiv 2408.15664 (the bias and its sign updates); these summaries are ours",
    axes=("layer",),
    null="no chance level is defined: 0 is a router whose bias changes nothing",
    needs_selection=True,
)
def selection_bias(
    router_bias: Float[Tensor, "layer expert"],
    router_sums: State,
    *,
    show: Literal["flips", "spread", "sd"] = "flips",
    rate: Annotated[float, Range(0, ends=False)] = 0.001,
    updates: Annotated[int, Range(0)] = 0,
) -> Values:
    """The bias b_e that is added for selection only, per layer.

    `flips`: share of selections whose unbiased score lies below the token's k-th highest: they are chosen because of
    the bias. `spread`: max b - min b. `sd`: standard deviation over experts (n - 1). If `updates` says how many sign
    updates of size `rate` made the bias, the facts give |b_e| / (rate x updates), the pinned fraction: 1 for an expert
    whose sign never flipped (balancing is losing), near 0 for one that hovers. The rate is the best value of the
    paper, a guess for any other run.

    Formula:
        flips = (1/(k T)) number of (t, e) with e selected by t and p_te < k-th largest of p_t
        p_te: router probability (or normalised score) without the bias; T tokens of k selections each.
        spread = max_e b_e - min_e b_e;  sd = sqrt(sum_e (b_e - mean b)^2 / (E - 1)), b_e the bias of expert e.

    Returns:
        One number per layer, 0 or more (`flips`: 0 to 1). NaN where the router adds no bias, or hides its scores
        (`flips`).

    Raises:
        BadKnob: If `rate` is not positive or `updates` negative.

    Source:
        Wang et al. 2024, arXiv 2408.15664.

    Caveat:
        A limit of the choice to groups of experts, where a router has one, displaces selections too and is counted in
        the flips. The bias only means something beside the scores it is added to; equal biases change nothing.
    """
    bias = router_bias.double()
    added = ~bias.isnan().any(-1)
    chosen = router_sums["scored"].sum(0) * router_sums.shape.top_k
    flips = torch.where(added, router_sums["displaced"].sum(0).double() / chosen, torch.nan)
    values = {"flips": flips, "spread": bias.amax(-1) - bias.amin(-1), "sd": bias.std(-1)}[show]
    facts = over_layers(values, router_sums.shape.layers, "highest")
    if updates and bool(added.any()):
        pinned = bias[added].abs() / (rate * updates)
        facts |= {"pinned fraction, mean": float(pinned.mean()), "pinned fraction, largest": float(pinned.max())}
    caveats = (NO_BIAS,) if not bool(added.all()) else ()
    caveats += (HIDDEN,) if bool(values[added].isnan().any()) else ()
    return Values(values, facts=facts, caveats=caveats)
