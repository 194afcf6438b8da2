"""What a router's selection bias does: how far it spreads, and which selections it changes."""

from __future__ import annotations

import math
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
ROUNDING = 0.01
"""By how much a bias stored in bfloat16, or summed up in float32, may exceed what its updates make."""


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
    whose sign never flipped (balancing is losing), near 0 for one that hovers. A checkpoint holds the bias alone, and
    no config says how many updates at which rate made it (rates change in training, a step may be several batches), so
    both have to be told; the facts say how many updates of `rate` it takes at least. The rate is the best value of the
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
    told, caveats = _pinned(bias[added], rate, updates)
    caveats += (NO_BIAS,) if not bool(added.all()) else ()
    caveats += (HIDDEN,) if bool(values[added].isnan().any()) else ()
    return Values(values, facts=facts | told, caveats=caveats)


def _pinned(
    bias: Float[Tensor, "layer expert"], rate: float, updates: int
) -> tuple[dict[str, int | float | str], tuple[str, ...]]:
    """How many updates a bias takes at least, and where it lies in what so many can make."""
    if not bias.numel():
        return {}, ()
    # A float32 sum of updates may end a little above a whole number of them.
    fewest = math.ceil(float(bias.abs().max()) / rate - 1e-3)
    facts: dict[str, int | float | str] = {"fewest updates of this rate": fewest}
    if not updates:
        return facts, ()
    pinned = bias.abs() / (rate * updates)
    facts |= {"pinned fraction, mean": float(pinned.mean()), "pinned fraction, largest": float(pinned.max())}
    beyond = f"{updates} updates of {rate:g} cannot make this bias, which takes {fewest}: one of the two is not right."
    return facts, (beyond,) if float(pinned.max()) > 1 + ROUNDING else ()
