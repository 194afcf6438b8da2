"""How alike the routing of every two prompts is."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.measure import Chance, Values, measure
from analysis.nulls import uniform_loads
from analysis.prompt_pairs import pair_mean
from analysis.result import Reason
from analysis.signatures import (
    NO_CORRECTION,
    Form,
    Weighting,
    corrected_cosines,
    directions,
    form_said,
    layer_cosines,
    mean_cosines,
    no_uniform_routing,
    said,
    signatures,
    squared_lengths,
    weighting_of,
)
from analysis.statistic import State

DRAWN_NUMBERS = 4_000_000
NO_CENTRE = "NaN: a prompt that equals the mean of all prompts has no centred signature."


@measure(
    title="Signature similarity",
    question="Which prompts use the same experts?",
    unit="cosine, mean over layers (-1 to 1; beyond by noise if corrected)",
    family="routing",
    source="Avinash 2026, arXiv 2603.11114",
    axes=("prompt", "prompt_b"),
    interval="each cell is one pair of prompts: leaving prompts out leaves no value to compare",
)
def signature_similarity(
    prompt_counts: State, *, weighting: Weighting = "auto", form: Form = "plain", centred: bool = False
) -> Values:
    """The mean over layers of the cosines between two prompts' signatures, which is not the cosine of the long vector.

    `plain` as published. `noise_corrected` divides by lengths freed of what counting few tokens adds; `length_matched`
    by those that as many tokens as the shortest prompt has would give.

    Formula:
        S_pq = mean over layers of s_p . s_q / (|s_p| |s_q|)
        s_p: share of each of the layer's experts in the selections of prompt p (centred: minus the mean over prompts).

    Returns:
        Prompt by prompt, 0 to 1 (-1 to 1 if centred, beyond by noise if corrected), prompts sorted by category. NaN for
        a prompt without tokens, and with one token if corrected.

    Raises:
        Nothing of its own.

    Source:
        Avinash 2026, arXiv 2603.11114; the corrected and centred forms are ours.

    Caveat:
        Short prompts look unlike each other even under the same routing, since few tokens scatter: see the floor. Alike
        routing can mean alike words and need not mean alike tasks.
    """
    shares = signatures(prompt_counts, weighting)
    if form == "plain" or prompt_counts.soft or weighting_of(prompt_counts, weighting) == "weight":
        similar = mean_cosines(directions(shares, centred))
    else:
        similar = _corrected(prompt_counts["selected"], prompt_counts["tokens"], form, centred)
    mean, pairs = pair_mean(similar, prompt_counts.prompts)
    facts = {"mean over pairs": mean, "pairs": pairs}
    caveats = said(prompt_counts, weighting, shares)
    if bool(similar.sum().isnan()) and not any(c.startswith("NaN: ") for c in caveats):
        caveats += (NO_CENTRE if form == "plain" else NO_CORRECTION,)
    return Values(similar, facts=facts, caveats=(*form_said(prompt_counts, weighting, form), *caveats))


@signature_similarity.chance
def null(
    prompt_counts: State, *, weighting: Weighting, form: Form, centred: bool, generator: torch.Generator
) -> Chance | Reason:
    """Cosines of prompts of these lengths under blind routing.

    Returns:
        Cosines: mean and 95 % band per pair of prompts; the diagonal is 1.

    Source:
        Load-balancing baseline of Avinash 2026, arXiv 2603.11114; distinct experts per token is ours.
    """
    if reason := no_uniform_routing(prompt_counts, weighting):
        return reason
    shape, tokens = prompt_counts.shape, prompt_counts["tokens"]
    draws = min(100, max(20, DRAWN_NUMBERS // (len(tokens) * max(len(tokens), shape.experts))))
    counts = uniform_loads(tokens.expand(draws, -1), shape.top_k, shape.experts, generator)
    drawn = _cosines(counts, tokens, form, centred)
    # A layer is one draw; the mean over independent layers scatters less, and normally.
    mean, half = drawn.mean(0), 1.96 * drawn.std(0) / len(shape.layers) ** 0.5
    how = f"uniform routing of each prompt's tokens, {draws} draws of one layer, mean over {len(shape.layers)} layers"
    return Chance(mean, mean - half, mean + half, how)


def _cosines(
    counts: Float[Tensor, "draw prompt expert"], tokens: Int[Tensor, " prompt"], form: Form, centred: bool
) -> Float[Tensor, "draw prompt prompt"]:
    if form != "plain":
        return corrected_cosines(counts / tokens[:, None], squared_lengths(counts, tokens, form), centred)
    shares = counts / counts.sum(-1, keepdim=True)
    return layer_cosines(directions(shares.transpose(0, 1), centred))


def _corrected(
    selected: Int[Tensor, "prompt layer expert"], tokens: Int[Tensor, " prompt"], form: Form, centred: bool
) -> Float[Tensor, "prompt prompt"]:
    # Layer by layer: no layer by prompt by prompt tensor is ever held.
    total = torch.zeros(len(tokens), len(tokens), dtype=torch.float64)
    layers = torch.zeros_like(total)
    for layer in selected.unbind(1):
        cosines = _cosines(layer[None].double(), tokens, form, centred)[0]
        total += cosines.nan_to_num()
        layers += ~cosines.isnan()
    return total / layers
