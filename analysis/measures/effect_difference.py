"""How much better, or worse, each layer of one checkpoint tells kinds of prompts apart than that of another."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.alignment import same_layers
from analysis.effect import cohens_d, label_codes, sizes_by_design
from analysis.loads import over_layers
from analysis.measure import Inputs, Values, measure
from analysis.outcomes import by_weight
from analysis.signatures import Form, Weighting, form_said, said, signatures
from analysis.statistic import State
from analysis.task_effect import effect_groups

NO_EXCHANGE = (
    "a prompt's two routings cannot be exchanged: its cosine with the other prompts compares experts by their numbers, "
    "which mean nothing in the other checkpoint; the interval says whether 0 is left out"
)


@measure(
    title="Signature effect difference",
    question="In which layers does b tell kinds of prompts apart better, or worse, than a?",
    unit="difference of Cohen's d (b - a; 0 is no difference)",
    family="compare",
    source="Effect: Avinash 2026, arXiv 2603.11114; the paired comparison is ours",
    axes=("layer",),
    reads=("prompt_counts",),
    null=NO_EXCHANGE,
)
def effect_difference(
    a: Inputs, b: Inputs, *, weighting: Weighting = "auto", form: Form = "plain", centred: bool = False
) -> Values:
    """Cohen's d of each layer of b minus that of a, over the prompts both have; experts need no partners.

    `auto` counts selections, and combine weights on both sides if one of them is fully soft.

    Formula:
        D = d(b) - d(a);  d = (m_w - m_a) / sqrt(((n_w - 1) v_w + (n_a - 1) v_a) / (n_w + n_a - 2))
        n, m, v: number, mean and variance (n - 1) of the cosines of pairs of prompts of equal (w), of different
        category (a), between the shares of a layer's experts in a prompt's selections on that side.

    Returns:
        One number per layer, any number; positive where b tells categories apart better. NaN where a side has no effect
        to speak of. The facts hold d of either side for the mean over layers, as published, and their difference.

    Raises:
        NotComparable: If layers differ.
        TooFew: If there are not two categories, or no category has two prompts; if weights are asked for and a side,
            an imported trace, carries none.

    Source:
        Avinash 2026, arXiv 2603.11114, for the effect of each side.

    Caveat:
        Both sides read the same prompts, so the interval leaves the same ones out on both: what makes a prompt easy on
        both sides cancels. d is counted in standard deviations of each side's own cosines: a router that sends all
        prompts nearly the same way can have a large one. No p stands beside it; several layers are not corrected for.
    """
    same_layers(a, b)
    if weighting == "auto" and (a.shape.soft or b.shape.soft):
        weighting = "weight"
    first, second = (_effects(side.prompt_counts, (weighting, form, centred)) for side in (a, b))
    values = (second - first)[:-1]
    facts = {f"Cohen's d of {name}": float(each[-1]) for name, each in (("a", first), ("b", second))}
    facts["difference for the mean over layers"] = float((second - first)[-1])
    told = over_layers(values.abs(), a.shape.layers, "highest")
    facts |= {"mean absolute difference": told.pop("mean over layers")} | told
    return Values(values, facts=facts, caveats=_said((a, b), values, weighting, form))


def _effects(counts: State, how: tuple[Weighting, Form, bool]) -> Float[Tensor, " row"]:
    labels = label_codes(counts.prompts.categories)[None]
    return cohens_d(*effect_groups(counts, labels, how, sizes_by_design(counts.prompts)))[0]


def _said(
    sides: tuple[Inputs, Inputs], values: Float[Tensor, " layer"], weighting: Weighting, form: Form
) -> tuple[str, ...]:
    notes = [*by_weight(*sides)] if weighting == "weight" else []
    for side in sides:
        counts = side.prompt_counts
        notes += [*form_said(counts, weighting, form), *said(counts, weighting, signatures(counts, weighting))]
    if bool(torch.isnan(values).any()) and not any(note.startswith("NaN: ") for note in notes):
        notes.append("NaN: on one side too few pairs have a signature, or none of them differ.")
    return tuple(dict.fromkeys(notes))
