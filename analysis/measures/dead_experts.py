"""How many experts a layer does not use."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from analysis.knob import Range
from analysis.loads import NO_TOKENS, layer_counts, over_layers, relative
from analysis.measure import Chance, Values, measure
from analysis.nulls import blind_chance
from analysis.result import Reason
from analysis.statistic import State


@measure(
    title="Dead experts",
    question="How many experts of each layer go unused?",
    unit="experts (0 to E)",
    family="routing",
    source="Ours, as expert-utilisation monitors count them; loads of Wang et al. 2024, arXiv 2408.15664",
    axes=("layer",),
    interval="a count of experts below a bar moves in whole steps: leaving prompts out says nothing of its spread",
    needs_selection=True,
)
def dead_experts(
    prompt_counts: State, *, count: Literal["selected", "served"] = "selected", share: Annotated[float, Range(0)] = 0.0
) -> Values:
    """Experts whose load is at most `share` of an equal share, per layer; 0, the default, counts those never chosen.

    Formula:
        D = number of experts e with n_e / mean_j n_j <= share
        n_e: selections of expert e (`served`: those it served); at share = 0 these are the experts with n_e = 0.

    Returns:
        One whole number per layer, 0 to E. NaN where no token was routed.

    Raises:
        BadKnob: If `share` is negative.

    Source:
        Ours; no threshold was found in any source, so it is a knob and its default asks for none.

    Caveat:
        Unused on these prompts is not unused: read it against what blind routing of as many tokens would leave out,
        and ask with more prompts.
    """
    counts = layer_counts(prompt_counts, count)
    values = _below(counts, share)
    facts = over_layers(values, prompt_counts.shape.layers, "highest")
    facts["dead experts"] = int(values.nansum())
    return Values(values, facts=facts, caveats=(NO_TOKENS,) if bool(values.isnan().any()) else ())


@dead_experts.chance
def null(prompt_counts: State, *, count: str, share: float, generator: torch.Generator) -> Chance | Reason:
    """How many experts blind routing of as many tokens leaves below the bar.

    Returns:
        Mean, 0 and the 95 % point, the same for every layer.

    Source:
        Ours: exact draws of k distinct experts per token.
    """
    return blind_chance(prompt_counts, generator, partial(_below, share=share), one_sided=True)


def _below(counts: Shaped[Tensor, "*case expert"], share: float) -> Float[Tensor, "*case"]:
    loads = relative(counts)
    return (loads <= share).sum(-1).double() + 0 * loads.sum(-1)
