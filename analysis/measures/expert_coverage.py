"""How much text it takes until every expert has been seen often enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import betainc, gammaln
from torch import Tensor

from analysis.knob import Range
from analysis.loads import layer_counts, over_layers
from analysis.measure import Chance, Values, measure
from analysis.nulls import blind_loads, central_band
from analysis.result import Reason
from analysis.statistic import State

Unit = Literal["tokens", "prompts"]
DRAWS = 400
NEVER = "NaN: more than these prompts are needed: some experts were seen too rarely, or never."


@measure(
    title="Expert coverage",
    question="How much text is needed until every expert has its share?",
    unit="tokens, or prompts (0 or more)",
    family="routing",
    source="Rarefaction: Hurlbert 1971, Ecology 52; over tokens the binomial form. For calibration sets: ours",
    axes=("layer",),
    needs_selection=True,
)
def expert_coverage(
    prompt_counts: State,
    *,
    count: Literal["selected", "served"] = "selected",
    by: Unit = "tokens",
    enough: Annotated[int, Range(1, 10_000)] = 1,
    missing: Annotated[float, Range(0, ends=False)] = 0.5,
) -> Values:
    """The N at which the expected number of experts seen fewer than `enough` times falls to `missing`.

    `tokens`: sum_e P(Binomial(N, p_e) < enough), with p_e the share of tokens that chose expert e. `prompts`: of P
    prompts, m taken at random; sum_e P(Hypergeometric(P, P_e, m) < enough), with P_e the prompts that chose e, which
    for `enough` = 1 is sum_e C(P - P_e, m) / C(P, m). Between whole prompts it is interpolated. Once, and half an
    expert missing, are choices: no source names any.

    Formula:
        N where sum_e (1 - p_e)^N = missing;  p_e = n_e / T
        n_e: of T tokens those that selected expert e. enough > 1: the sum is of P(Binomial(N, p_e) < enough). prompts:
        the sum is of P(Hypergeometric(P, P_e, m) < enough): m of P prompts, P_e of which selected e.

    Returns:
        One number per layer, 0 or more, in tokens or prompts. NaN where an expert was never seen, or P prompts do not
        suffice.

    Raises:
        BadKnob: If `enough` is not 1 to 10,000 or `missing` not positive.

    Source:
        Hurlbert 1971, Ecology 52, 577 (rarefaction).

    Caveat:
        Tokens are taken as independent: real ones come in bursts, so count by prompts too, which assumes nothing but
        that the next prompts are like these. How many are enough is yours to say: 1 shows that an expert exists, the
        width of the model lets its input covariance have full rank.
    """
    seen, total = _seen(prompt_counts, count, by)
    values = _needed(seen, total, by, enough, missing)
    counts = layer_counts(prompt_counts, count)
    facts = over_layers(values, prompt_counts.shape.layers, "highest")
    facts |= {
        f"{by} asked about": total,
        "experts never seen": int((counts == 0).sum()),
        "share of selections by experts unseen so far (Good-Turing)": float((counts == 1).sum() / counts.sum()),
    }
    return Values(values, facts=facts, caveats=(NEVER,) if bool(values.isnan().any()) else ())


@expert_coverage.chance
def null(
    prompt_counts: State, *, count: str, by: Unit, enough: int, missing: float, generator: torch.Generator
) -> Chance | Reason:
    """What blind routing of as many tokens would need; of `served`, if it drops as large a share of its selections.

    Returns:
        Mean and central 95 % band, the same for every layer unless they differ in what they drop.

    Source:
        Ours: exact draws of k distinct experts per token, each of which is dropped with the same chance.
    """
    found = blind_loads(prompt_counts, generator, per_prompt=by == "prompts", draws=DRAWS)
    if isinstance(found, Reason):
        return found
    loads, how = found
    kept = _kept(prompt_counts, count)
    how += ", each kept with the chance that it was served in its layer" if bool((kept < 1).any()) else ""
    # Without a case for prompts that have no tokens, they are still prompts to be drawn.
    total = len(prompt_counts.prompts) if by == "prompts" else int(prompt_counts["tokens"].sum())
    cases = []
    for share in kept:
        rest = torch.binomial(loads, share.expand_as(loads).contiguous(), generator=generator) if share < 1 else loads
        seen = (rest > 0).sum(1) if by == "prompts" else rest[:, 0].long()
        cases.append(_needed(seen, total, by, enough, missing))
    drawn = torch.stack(cases, -1).squeeze(-1)
    if bool(drawn.isnan().any()):
        return Reason(f"blind routing of as many tokens leaves experts short in {int(drawn.isnan().sum())} of {how}")
    return Chance(drawn.mean(0), *central_band(drawn), how)


def _kept(prompt_counts: State, count: str) -> Float[Tensor, " case"]:
    """The share of its selections that each layer counts; one case if all count them all."""
    share = layer_counts(prompt_counts, count).sum(-1).double() / layer_counts(prompt_counts, "selected").sum(-1)
    return share if bool((share < 1).any()) else torch.ones(1, dtype=torch.float64)


def _seen(prompt_counts: State, count: str, by: Unit) -> tuple[Int[Tensor, "layer expert"], int]:
    if by == "prompts":
        return (prompt_counts[count] > 0).sum(0), len(prompt_counts.prompts)
    return layer_counts(prompt_counts, count), int(prompt_counts["tokens"].sum())


def _needed(
    seen: Int[Tensor, "case expert"], total: int, by: Unit, enough: int, missing: float
) -> Float[Tensor, " case"]:
    counts = seen.numpy().astype(float)
    if by == "tokens":
        known = (counts > 0).all(-1)
        found = np.full(len(counts), np.nan)
        if known.any():
            found[known] = _tokens_needed(counts[known] / total, enough, missing)
        return torch.from_numpy(found)
    return torch.from_numpy(_prompts_needed(counts, total, enough, missing))


def _tokens_needed(share: np.ndarray, enough: int, missing: float) -> np.ndarray:
    def short(tokens: np.ndarray) -> np.ndarray:
        if enough == 1:
            return ((1 - share) ** tokens[:, None]).sum(-1)
        # The binomial's distribution function, which this writes for tokens that are no whole number too.
        beyond = np.maximum(tokens[:, None] - enough + 1, 1e-12)
        return betainc(beyond, enough, 1 - share).sum(-1)

    high = np.full(len(share), float(enough))
    while (low := short(high) > missing).any():
        high[low] *= 2
    return _halved(short, np.zeros(len(share)), high, missing, whole=False)[1]


def _prompts_needed(touched: np.ndarray, prompts: int, enough: int, missing: float) -> np.ndarray:
    def choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
        inside = (k >= 0) & (k <= n)
        k = np.where(inside, k, 0)
        return np.where(inside, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), -np.inf)

    def short(taken: np.ndarray) -> np.ndarray:
        m = taken[:, None]
        every = choose(np.full_like(m, prompts), m)
        terms = [choose(touched, np.full_like(m, j)) + choose(prompts - touched, m - j) for j in range(enough)]
        return np.exp(np.stack(terms) - every).sum((0, -1))

    size = len(touched)
    low, high = _halved(short, np.zeros(size), np.full(size, float(prompts)), missing, whole=True)
    above, below = short(low), short(high)
    # Equal where `missing` lets all experts be missing: then nothing is needed.
    step = (above - missing) / np.where(above > below, above - below, 1)
    return np.where(below > missing + 1e-9, np.nan, low + (high - low) * step)


def _halved(
    short: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray, missing: float, whole: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Brackets of where `short` falls to `missing`, halved until whole numbers meet or digits run out."""
    while bool((high - low > (1 if whole else 1e-12 * high)).any()):
        middle = np.floor((low + high) / 2) if whole else (low + high) / 2
        above = short(middle) > missing
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low, high
