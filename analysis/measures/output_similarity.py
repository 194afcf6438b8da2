"""Whether two experts answer the same token alike."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from scipy.stats import beta
from scipy.stats import t as student
from torch import Tensor

from analysis import beside
from analysis.cosines import off_diagonal, row_cosines
from analysis.measure import Chance, Values, measure
from analysis.slopes import without_tokens
from analysis.statistic import State
from analysis.statistics.output_sums import DRAWS

Likeness = Literal["angular", "cosine"]
Of = Literal["same token", "mean output"]


@measure(
    title="Output similarity",
    question="Do two experts answer the same token alike?",
    unit="likeness (angular: 0 opposite, 0.5 unrelated, 1 same direction; cosine: -1 to 1)",
    family="function",
    source="Lo et al. 2025, arXiv 2406.18219 (angular, same token); Chen et al. 2025, arXiv 2410.08589 (mean output)",
    axes=("layer", "expert", "expert_b"),
)
def output_similarity(output_sums: State, *, likeness: Likeness = "angular", of: Of = "same token") -> Values:
    """1 - arccos(c) / pi, or c itself, with c the cosine between two experts' outputs on the common tokens.

    `same token`: of the outputs of each token, averaged over tokens; `mean output`: of the two mean outputs.

    Formula:
        S_ef = (1/T) sum_t (1 - arccos(c_t) / pi);  c_t = f_e(x_t) . f_f(x_t) / (|f_e(x_t)| |f_f(x_t)|)
        f_e(x_t): output of expert e for common token t, without combine weight; T tokens on which neither output is 0.
        cosine: c_t itself. mean output: c of sum_t f_e(x_t) and sum_t f_f(x_t) in place of the mean over tokens.

    Returns:
        Layer by expert by expert, 0 to 1 or -1 to 1; the diagonal is 1. NaN for an expert whose output is always 0, or
        without a common token. Where a shared expert serves every token, E + 1 by E + 1, that one last; means over
        pairs leave it out and have it as a fact.

    Raises:
        Nothing of its own.

    Source:
        Lo et al. 2025, arXiv 2406.18219.

    Caveat:
        Every expert is asked, chosen or not: most of these answers are never used. Outputs that share a large mean are
        alike whatever else they do. Near 1 an arccos keeps half the digits: two experts with the same matrices come out
        about 3e-9 below 1, and 6e-5 where matrices are so large that they multiply in float32.
    """
    shape = output_sums.shape
    if of == "same token":
        found = _bordered(output_sums, likeness) / _bordered(output_sums, "pairs")
    else:
        outputs = torch.cat([output_sums[name].sum(0) for name in ("common_output", "shared_common_output")], -2)
        found = row_cosines(outputs, "raw")
        same = torch.eye(found.shape[-1], dtype=torch.bool) & ~found.isnan()
        found = torch.where(same, torch.ones_like(found), found)
        found = found if likeness == "cosine" else 1 - found.acos() / math.pi
    pairs, tokens = off_diagonal(beside.parted(found, shape.experts)[0]), output_sums["common"].sum(0)
    facts = {
        "mean over pairs": float(pairs.nanmean()),
        "largest": float(pairs[~pairs.isnan()].max()) if bool((~pairs.isnan()).any()) else float("nan"),
        "pairs": int((~pairs.isnan()).sum()),
        "common tokens": int(tokens.min()),
    } | beside.fact(found, shape.experts)
    silent = ("NaN: an expert whose output is 0 has no direction.",) if bool(found.isnan().any()) else ()
    return Values(found, caveats=without_tokens(tokens, "layer(s)") or silent, facts=facts)


@output_similarity.chance
def null(output_sums: State, *, likeness: Likeness, of: Of, generator: torch.Generator) -> Chance:
    """Two experts that write to unrelated output directions and otherwise answer as they do.

    `same token`: a band for each pair, from the likeness of one to the other after each of 8 fixed shuffles of the
    output dimensions, signs too, on the same tokens. Tokens on which an expert says much the same count as few, which
    no division by the root of their number would know. `mean output`: two unrelated directions.

    Returns:
        In the unit of the likeness: mean and 95 % band for two different experts; 1 on the diagonal. NaN where the
        value is.

    Source:
        Ours: the mean cosine of unrelated directions is 0 by symmetry, its spread the root mean square of the draws;
        Student t on as many degrees of freedom as there are shuffles, since the two orders of a pair may draw the same.
        The squared cosine of independent uniform directions is Beta(1/2, (d - 1)/2).
    """
    model, same = output_sums.shape.model, torch.eye(beside.count(output_sums.shape), dtype=torch.bool)
    unrelated = 0.0 if likeness == "cosine" else 0.5
    if of == "same token":
        half = float(student.ppf(0.975, DRAWS)) * _spread(output_sums, likeness, unrelated)
        half = half.clamp(max=1.0 if likeness == "cosine" else 0.5)
        how = f"the same answers with output dimensions shuffled, signs too: {DRAWS} draws a pair, Student t"
    else:
        edge = torch.tensor(math.sqrt(beta.ppf(0.95, 0.5, (model - 1) / 2)), dtype=torch.float64)
        half = edge if likeness == "cosine" else edge.asin() / math.pi
        how = f"two unrelated directions in {model} dimensions"
    bounds = (torch.full_like(half, unrelated), unrelated - half, unrelated + half)
    centre, low, high = (torch.where(same, torch.ones_like(bound), bound) for bound in bounds)
    return Chance(centre, low, high, how)


def _spread(output_sums: State, likeness: Likeness, unrelated: float) -> Float[Tensor, "layer every every"]:
    """Root mean square, over shuffles and both orders of a pair, of how far its mean likeness is from `unrelated`."""
    squares = []
    for side in ("", "shared_"):
        tokens = output_sums[f"{side}pairs"].sum(0).double()
        drawn = output_sums[f"{side}drawn_{likeness}"].sum(0) / tokens[..., None]
        squares.append((drawn - unrelated).square().mean(-1))
    routed, shared = squares
    own = output_sums["shared_alone"].sum(0).double() * 0  # the diagonal, which has no band
    return beside.bordered((routed + routed.mT) / 2, shared, own).sqrt()


def _bordered(output_sums: State, name: str) -> Float[Tensor, "layer every every"]:
    """Sums of all pairs; a token is exactly like itself, so the shared expert with itself is a count."""
    arrays = (output_sums[name], output_sums[f"shared_{name}"], output_sums["shared_alone"])
    return beside.bordered(*(array.sum(0).double() for array in arrays))
