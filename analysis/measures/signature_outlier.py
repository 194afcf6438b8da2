"""Which prompts are routed unlike the rest of their category, or like another one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from scipy.stats import false_discovery_control
from scipy.stats import t as student
from torch import Tensor

from analysis.measure import Chance, Values, measure
from analysis.result import Axis, Reason
from analysis.signatures import NO_CORRECTION, Weighting, said, signatures, squared_lengths, weighting_of
from analysis.statistic import State

LEVEL = 0.05
NOT_CORRECTED = "Combine weights carry no counting noise to correct for: these are the plain distances."
ALONE = "NaN: a category with no other prompt has nothing to be far from."
ONE_OTHER = "NaN: of a category with one other text the counting noise is not known: no corrected distance to it."


@measure(
    title="Signature outliers",
    question="Which prompts are routed unlike the rest of their category?",
    unit="1 - cosine, mean over layers (0 to 1; below 0 by noise if corrected)",
    family="routing",
    source="Signatures: Avinash 2026, arXiv 2603.11114; the distance to a category without the prompt is ours",
    axes=("prompt", "category"),
    interval="each row is one prompt: leaving prompts out leaves no value to compare",
)
def signature_outlier(prompt_counts: State, *, weighting: Weighting = "auto", corrected: bool = False) -> Values:
    """Distance of a prompt's signature to the mean signature of each category, the prompt and its copies left out.

    `corrected` takes counting noise out of the length of both, so that short prompts are not far for being short.

    Formula:
        D_pc = 1 - mean over layers of s_p . m_c / (|s_p| |m_c|)
        s_p: share of each expert in the selections of prompt p; m_c: mean of s_q over prompts q of category c with
        another text. corrected: |s_p|^2 and |m_c|^2 are replaced by their estimates without counting noise.

    Returns:
        Prompt by category, 0 (the same experts in the same shares) to 1 (none in common). NaN for a prompt without
        tokens, and to a category without another prompt (corrected: without two). The facts count outliers at a false
        discovery rate of 5 % and say how many prompts are nearest to their own category.

    Raises:
        Nothing of its own.

    Source:
        Avinash 2026, arXiv 2603.11114, for the signatures.

    Caveat:
        Short prompts scatter more and are called outliers more easily unless corrected. An outlier may be a wrong
        label, an odd prompt, or one cut in an odd place: look at its text.
    """
    values, own, names = _distances(prompt_counts, weighting, corrected)
    shares = signatures(prompt_counts, weighting)
    axes = (Axis("prompt", prompt_counts.prompts.ids, prompt_counts.prompts.categories), Axis("category", names))
    caveats = said(prompt_counts, weighting, shares)
    exact = corrected and _counted(prompt_counts, weighting)
    routed = ~shares.isnan().any(-1).any(-1)
    caveats += _unknown(values[routed], _of_others(prompt_counts, own.double())[routed], exact)
    if corrected and not exact:
        caveats += (NOT_CORRECTED,)
    return Values(values, axes, caveats, _facts(prompt_counts, values, own))


@signature_outlier.chance
def null(prompt_counts: State, *, weighting: Weighting, corrected: bool, generator: torch.Generator) -> Chance | Reason:
    """Distances of the category's own other prompts, each to the rest of it.

    Returns:
        Mean and 95 % band per prompt and category; NaN where fewer than two others are left.

    Source:
        Student's prediction interval for one more prompt of the category.
    """
    values, own, _ = _distances(prompt_counts, weighting, corrected)
    if bool(values.isnan().all()):
        return Reason("no prompt has a distance")
    mean, spread, freedom = _of_the_others(prompt_counts, values, own)
    half = torch.as_tensor(student.ppf(1 - LEVEL / 2, freedom.numpy())) * spread
    how = "leave-one-out: distances of the category's other prompts to the rest of it, Student's prediction interval"
    return Chance(mean, mean - half, mean + half, how)


def _counted(state: State, weighting: Weighting) -> bool:
    return weighting_of(state, weighting) == "count" and not state.soft


def _distances(
    state: State, weighting: Weighting, corrected: bool
) -> tuple[Float[Tensor, "prompt category"], Bool[Tensor, "prompt category"], tuple[str, ...]]:
    names = tuple(sorted(set(state.prompts.categories)))
    own = torch.tensor([[c == name for name in names] for c in state.prompts.categories]).view(-1, len(names))
    shares = signatures(state, weighting)
    squared = shares.square().sum(-1)
    if exact := corrected and _counted(state, weighting):
        shares = state["selected"].double() / state["tokens"].double()[:, None, None]
        squared = squared_lengths(state["selected"].transpose(0, 1), state["tokens"], "noise_corrected").T
    known = ~(shares.isnan().any(-1) | squared.isnan()).any(-1)
    squared = torch.where(squared > 0, squared, torch.nan)
    filled = shares.masked_fill(~known[:, None, None], 0)
    columns = []
    for members in (own & known[:, None]).double().T:
        count = _of_others(state, members[:, None])[..., None]
        mean = _of_others(state, members[:, None] * filled.flatten(1)).view(shares.shape) / count
        length = mean.square().sum(-1)
        if exact:
            # Mean product of two different prompts: a mean's own length holds the scatter of each of them.
            single = _of_others(state, members[:, None] * filled.square().sum(-1)) / count[..., 0]
            # Of a single other prompt there is none: what rounding leaves of it must not be divided by 0.
            pairs = (count[..., 0] - 1).clamp(min=0)
            length = torch.where(pairs > 0, (count[..., 0] * length - single) / pairs, torch.nan)
        length = torch.where(length > 0, length, torch.nan)
        columns.append(1 - ((shares * mean).sum(-1) / (squared * length).sqrt()).nanmean(-1))
    return torch.stack(columns, -1), own, names


def _unknown(
    values: Float[Tensor, "prompt category"], others: Float[Tensor, "prompt category"], exact: bool
) -> tuple[str, ...]:
    """Why distances of prompts that have a signature are NaN, each reason that there is."""
    missing = values.isnan()
    reasons = {ALONE: others == 0}
    if exact:
        reasons |= {ONE_OTHER: others == 1, NO_CORRECTION: others > 1}
    return tuple(reason for reason, where in reasons.items() if bool((missing & where).any()))


def _of_others(state: State, numbers: Float[Tensor, "prompt feature"]) -> Float[Tensor, "prompt feature"]:
    """The sum over all prompts but those with this prompt's text."""
    number = {digest: i for i, digest in enumerate(dict.fromkeys(state.prompts.digests))}
    text = torch.tensor([number[digest] for digest in state.prompts.digests], dtype=torch.long)
    own = torch.zeros(len(number), numbers.shape[1], dtype=numbers.dtype).index_add_(0, text, numbers)
    return numbers.sum(0) - own[text]


def _of_the_others(
    state: State, values: Float[Tensor, "prompt category"], own: Bool[Tensor, "prompt category"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, spread of one more and degrees of freedom of the other members' distances, per prompt and category."""
    inside = own & ~values.isnan()
    filled = torch.where(inside, values, 0.0)
    count = _of_others(state, inside.double())
    mean = _of_others(state, filled) / count
    # About the mean of all: about 0 the difference of squares would lose half the digits.
    centre = filled.sum(0) / inside.sum(0)
    away = torch.where(inside, values - centre, 0.0)
    squares = _of_others(state, away.square()) - count * (mean - centre).square()
    variance = torch.where(count > 1, squares.clamp(min=0) / (count - 1), torch.nan)
    return mean, (variance * (1 + 1 / count)).sqrt(), count - 1


def _facts(
    state: State, values: Float[Tensor, "prompt category"], own: Bool[Tensor, "prompt category"]
) -> dict[str, int | float | str]:
    mean, spread, freedom = _of_the_others(state, values, own)
    score = ((values - mean) / spread)[own]
    known = ~score.isnan() & ~score.isinf()
    nearest = values.nan_to_num(nan=torch.inf).argmin(-1) == own.int().argmax(-1)
    judged = ~values[own].isnan()
    facts: dict[str, int | float | str] = {
        "prompts": int(judged.sum()),
        "nearest to their own category": float(nearest[judged].double().mean()),
    }
    if not bool(known.any()):
        return facts
    p = student.sf(score[known].numpy(), freedom[own][known].numpy())
    found = torch.as_tensor(false_discovery_control(p)) <= LEVEL
    farthest = int(known.nonzero()[:, 0][int(score[known].argmax())])
    return facts | {"outliers at 5 % false discovery rate": int(found.sum()), "farthest": state.prompts.ids[farthest]}
