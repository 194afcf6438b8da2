"""Whether prompts of one category are routed more alike than prompts of different categories, by depth."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.effect import Group, cohens_d, label_codes, shuffled, sizes_by_design
from analysis.measure import Chance, Values, measure
from analysis.nulls import above_the_largest, beyond, central_band
from analysis.signatures import Form, Weighting, form_said, said, signatures
from analysis.statistic import State
from analysis.task_effect import effect_groups

DRAWS = 999
Quantity = Literal["cohens_d", "within", "across"]


@measure(
    title="Signature effect",
    question="In which layers does routing tell one kind of prompt from another?",
    unit="Cohen's d (pooled standard deviations); mean cosine for within and across",
    family="routing",
    source="Avinash 2026, arXiv 2603.11114",
    axes=("layer",),
)
def signature_effect(
    prompt_counts: State,
    *,
    quantity: Quantity = "cohens_d",
    weighting: Weighting = "auto",
    form: Form = "plain",
    centred: bool = False,
) -> Values:
    """Cohen's d of the cosines of same-category pairs against those of different categories, per layer.

    `plain` cosines as published. `noise_corrected` and `length_matched` take out that short prompts look unlike each
    other by counting noise alone.

    Formula:
        d = (m_w - m_a) / sqrt(((n_w - 1) v_w + (n_a - 1) v_a) / (n_w + n_a - 2))
        n, m, v: number, mean and variance (n - 1) of the cosines of pairs of prompts of equal (w), of different
        category (a). cosine of prompts p, q: s_p . s_q / (|s_p| |s_q|), s_p the share of each of the layer's experts in
        p's selections.

    Returns:
        One number per layer: d, any number (0 is no effect), or the mean cosine within or across categories, 0 to 1 (-1
        to 1 if centred, beyond by noise if corrected). The facts hold within, across and d for the mean over layers of
        the cosines, as published, and how many pairs they used.

    Raises:
        TooFew: If there are not two categories, or no category has two prompts.

    Source:
        Avinash 2026, arXiv 2603.11114; pooled by n - 1 over all pairs, which reproduces its 1.44.

    Caveat:
        Pairs share prompts, so they are not independent: trust the permutation p and the interval, not the number of
        pairs. Where all categories have equally many prompts, the interval takes that for made so, and else counts that
        their shares might have been others (which widens it where one category is more alike in itself). Categories
        that differ in length or vocabulary differ in routing for that reason too.
    """
    labels, sizes = label_codes(prompt_counts.prompts.categories)[None], sizes_by_design(prompt_counts.prompts)
    within, across = effect_groups(prompt_counts, labels, (weighting, form, centred), sizes)
    values = _quantity(within, across, quantity)[0]
    effect = cohens_d(within, across)[0, -1]
    facts = {
        "within": float(within.mean[0, -1]),
        "within sd": float(within.sd[0, -1]),
        "across": float(across.mean[0, -1]),
        "across sd": float(across.sd[0, -1]),
        "Cohen's d": float(effect),
        "pairs": int(within.count[0, -1] + across.count[0, -1]),
    }
    caveats = said(prompt_counts, weighting, signatures(prompt_counts, weighting))
    if bool(values.isnan().any()) and not any(c.startswith("NaN: ") for c in caveats):
        caveats += ("NaN: too few pairs with a signature, or none of them differ.",)
    return Values(values[:-1], facts=facts, caveats=(*form_said(prompt_counts, weighting, form), *caveats))


@signature_effect.chance
def null(
    prompt_counts: State,
    *,
    quantity: Quantity,
    weighting: Weighting,
    form: Form,
    centred: bool,
    generator: torch.Generator,
) -> Chance:
    """The same numbers under shuffled category labels.

    Returns:
        Mean and central 95 % band per layer, in the measure's unit. Facts: `permutation p` for d of the mean over
        layers; how many layers have an effect, and the p of the strongest, corrected for the number of layers.

    Source:
        Fisher 1935; p = (1 + draws at least as large) / (1 + draws). Westfall & Young 1993 for several layers.
    """
    labels = label_codes(prompt_counts.prompts.categories)
    labels = torch.cat([labels[None], shuffled(labels, DRAWS, generator)])
    within, across = effect_groups(prompt_counts, labels, (weighting, form, centred))
    by_layer, drawn = cohens_d(within, across), _quantity(within, across, quantity)[1:, :-1]
    effects, corrected = by_layer[:, -1], above_the_largest(by_layer[:, :-1])
    found, least = beyond(corrected)
    p = float((effects >= effects[0] - 1e-12).double().mean()) if not bool(effects[0].isnan()) else torch.nan
    how = f"{DRAWS} random permutations of the category labels; layers corrected by the max-statistic"
    facts = {
        "permutation p": p,
        "layers with an effect (corrected)": found,
        "p of the strongest layer (corrected)": least,
    }
    return Chance(drawn.mean(0), *central_band(drawn), how, facts, corrected)


def _quantity(within: Group, across: Group, quantity: Quantity) -> Float[Tensor, "draw row"]:
    if quantity == "cohens_d":
        return cohens_d(within, across)
    return (within if quantity == "within" else across).mean
