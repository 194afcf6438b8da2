"""How far the busiest expert of a layer lies above an equal share, or the idlest below it; or how unequal all are."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from analysis.loads import Unevenness, idle, layer_counts, over_layers, unevenness
from analysis.measure import Chance, Values, measure
from analysis.nulls import blind_chance
from analysis.result import Reason
from analysis.statistic import State

Over = Literal["all", "prompts"]


@measure(
    title="Load violation (MaxVio)",
    question="How unbalanced is the busiest expert of each layer?",
    unit="excess over an equal share (0 to E/k - 1, to E - 1 if not all selections count; 0 is balanced)",
    family="routing",
    source="Wang et al. 2024, arXiv 2408.15664 (MaxVio; MinVio is its mirror)",
    axes=("layer",),
    needs_selection=True,
)
def load_violation(
    prompt_counts: State,
    *,
    count: Literal["selected", "served"] = "selected",
    which: Unevenness = "max",
    over: Over = "all",
) -> Values:
    """MaxVio per layer: (max load - mean load) / mean load; MinVio: (mean load - min load) / mean load.

    Both are 0 at balance and grow with imbalance, as do two numbers of all experts that others report: `cv`, standard
    deviation over mean load, and `gini`, the mean difference of two loads over twice the mean. `over="all"` takes the
    loads of all tokens together (`global` in the paper); `over="prompts"` is per batch, one prompt a batch: the
    violation of each prompt, then the mean.

    Formula:
        V = max_e n_e / mean_j n_j - 1
        n_e: selections of expert e (`served`: those it served). min: V = 1 - min_e n_e / mean_j n_j. cv: sqrt(mean_e
        (n_e / mean_j n_j - 1)^2). gini: mean over e, f of |n_e - n_f| / (2 mean_j n_j). prompts: V of each prompt by
        itself, then the mean over prompts that have tokens.

    Returns:
        One number per layer: 0 to E/k - 1 (`max`) if all selections are counted, else 0 to E - 1 (`served` without what
        capacity dropped or a skip expert took; choices of identity experts); 0 to 1 (`min`: an expert without tokens);
        0 to sqrt(E/k - 1) (`cv`), 0 to 1 - k/E (`gini`). NaN where no token was routed.

    Raises:
        Nothing of its own.

    Source:
        Wang et al. 2024, arXiv 2408.15664; cv: Shazeer et al. 2017, arXiv 1701.06538; Gini 1912.

    Caveat:
        A finite sample of perfectly balanced routing is not 0: read it against the floor, which falls with the number
        of tokens (and is too low where not all k selections of a token are counted). MaxVio of a batch and of a whole
        validation set are different numbers: prompt by prompt it is larger, and its floor too. The interval of an
        extreme is a little narrow: in simulations (8 experts, 64 prompts of 40 tokens, from nearly balanced to 0.6) it
        held the value of endless prompts 91 to 95 % of the time.
    """
    counts = layer_counts(prompt_counts, count)
    values = unevenness(prompt_counts[count], which).nanmean(0) if over == "prompts" else unevenness(counts, which)
    facts, caveats = idle(counts)
    return Values(
        values, facts={**over_layers(values, prompt_counts.shape.layers, "highest"), **facts}, caveats=caveats
    )


@load_violation.chance
def null(
    prompt_counts: State, *, count: str, which: Unevenness, over: Over, generator: torch.Generator
) -> Chance | Reason:
    """The floor: the violation of blind routing of as many tokens.

    Returns:
        Mean, 0 and the 95 % point, the same for every layer.

    Source:
        Ours: exact draws of k distinct experts per token.
    """
    return blind_chance(
        prompt_counts, generator, partial(unevenness, which=which), per_prompt=over == "prompts", one_sided=True
    )
