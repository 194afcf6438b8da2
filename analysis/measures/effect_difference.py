"""How much better, or worse, each layer of one checkpoint tells kinds of prompts apart than that of another."""

from __future__ import annotations

import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

from analysis.alignment import same_layers
from analysis.bounds import FEWEST_BLOCKS, quantile, spread
from analysis.effect import cohens_d, label_codes, sizes_by_design
from analysis.errors import TooFew
from analysis.loads import over_layers
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import beyond, holm
from analysis.outcomes import by_weight
from analysis.result import Reason
from analysis.signatures import Form, Weighting, form_said, said, signatures
from analysis.statistic import State
from analysis.task_effect import effect_groups


@measure(
    title="Signature effect difference",
    question="In which layers does b tell kinds of prompts apart better, or worse, than a?",
    unit="difference of Cohen's d (b - a; 0 is no difference)",
    family="compare",
    source="Effect: Avinash 2026, arXiv 2603.11114; the paired comparison is ours",
    axes=("layer",),
    reads=("prompt_counts",),
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
        prompts nearly the same way can have a large one. Chance here is the spread over blocks of prompts: to exchange
        a prompt's two routings would set experts beside each other that share nothing but a number. Where routing is
        blind to the task on both sides its band is too wide (in simulations 0.3 to 0.7 % lay outside, where 5 %
        should), so what is beyond it is; where both sides tell tasks apart the interval held 94 to 96 % of the time.
    """
    same_layers(a, b)
    how = _settled((a, b), weighting, form, centred)
    weighting = how[0]
    first, second = (_effects(side.prompt_counts, how) for side in (a, b))
    values = (second - first)[:-1]
    facts = {f"Cohen's d of {name}": float(each[-1]) for name, each in (("a", first), ("b", second))}
    facts["difference for the mean over layers"] = float((second - first)[-1])
    told = over_layers(values.abs(), a.shape.layers, "highest")
    facts |= {"mean absolute difference": told.pop("mean over layers")} | told
    return Values(values, facts=facts, caveats=_said((a, b), values, weighting, form))


@effect_difference.chance
def null(
    a: Inputs, b: Inputs, *, weighting: Weighting, form: Form, centred: bool, generator: torch.Generator
) -> Chance | Reason:
    """No difference, give or take what leaving out blocks of prompts shows.

    Returns:
        Mean 0 and 95 % band per layer. Facts: layers that differ, and the p of the one that differs most, corrected for
        all layers.

    Source:
        Student t over the jackknife's error: Hinkley 1977; several layers: Holm 1979.
    """
    how, blocks = _settled((a, b), weighting, form, centred), a.prompt_counts.blocks
    if len(blocks) < FEWEST_BLOCKS:
        return Reason(f"the prompts fall into {len(blocks)} block(s); the jackknife needs {FEWEST_BLOCKS}")
    counts = a.prompt_counts, b.prompt_counts
    try:
        parts = torch.stack([_less(*(c.without_block(block) for c in counts), how=how) for block in blocks])
    except TooFew as error:
        return Reason(f"not defined with a block of prompts left out: {error}")
    error, observed = spread(parts), _less(*counts, how)
    p = holm(2 * torch.from_numpy(student.sf((observed.abs() / error).numpy(), len(blocks) - 1)))
    p = torch.where(observed.abs() <= 1e-9, torch.ones_like(p), p)  # what rounding leaves of none
    found, least = beyond(p)
    facts = {"layers that differ beyond chance (Holm)": f"{found} of {len(p)}", "p of the surest layer": least}
    half = quantile(len(blocks)) * error
    told = f"no difference, with the spread over {len(blocks)} blocks of prompts, Student t; layers corrected by Holm"
    return Chance(torch.zeros_like(half), -half, half, told, facts, p)


def _settled(
    sides: tuple[Inputs, Inputs], weighting: Weighting, form: Form, centred: bool
) -> tuple[Weighting, Form, bool]:
    soft = any(side.shape.soft for side in sides)
    return "weight" if weighting == "auto" and soft else weighting, form, centred


def _less(first: State, second: State, how: tuple[Weighting, Form, bool]) -> Float[Tensor, " layer"]:
    return (_effects(second, how) - _effects(first, how))[:-1]


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
