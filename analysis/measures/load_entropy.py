"""How evenly a layer spreads its work over all experts."""

from __future__ import annotations

from typing import Literal

import torch

from analysis.loads import evenness, idle, layer_counts, over_layers
from analysis.measure import Chance, Values, measure
from analysis.nulls import blind_chance
from analysis.result import Reason
from analysis.statistic import State


@measure(
    title="Load entropy",
    question="How evenly does each layer spread its work?",
    unit="entropy over ln E (0 to 1; 1 is balanced)",
    family="routing",
    source="Shannon 1948 over the loads of Wang et al. 2024, arXiv 2408.15664",
    axes=("layer",),
    needs_selection=True,
    plug_in=True,
)
def load_entropy(prompt_counts: State, *, count: Literal["selected", "served"] = "selected") -> Values:
    """Entropy of the shares of (token, slot) pairs per layer, over ln E.

    Formula:
        H = -(1 / ln E) sum_e q_e ln q_e;  q_e = n_e / sum_j n_j
        n_e: selections of expert e (`served`: those it served); E experts.

    Returns:
        One number per layer, 0 to 1: at least ln k / ln E (the same k experts for every token) if all selections count.
        NaN where no token was routed.

    Raises:
        Nothing of its own.

    Source:
        Shannon 1948; normalised by its largest value.

    Caveat:
        The entropy of a finite sample is too low on average; the interval is centred on the bias-corrected value, so
        it may lie above the figure. Numbers near 1 can hide one hot expert: read it beside the load violation.
    """
    counts = layer_counts(prompt_counts, count)
    values = evenness(counts)
    facts, caveats = idle(counts)
    return Values(values, facts={**over_layers(values, prompt_counts.shape.layers, "lowest"), **facts}, caveats=caveats)


@load_entropy.chance
def null(prompt_counts: State, *, count: str, generator: torch.Generator) -> Chance | Reason:
    """Entropy of blind routing of as many tokens.

    Returns:
        Mean and central 95 % band, the same for every layer.

    Source:
        Ours: exact draws of k distinct experts per token.
    """
    return blind_chance(prompt_counts, generator, evenness)
