"""How much of what an expert does is the same linear map for every token."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.jacobians import probes
from analysis.measure import Values, measure
from analysis.slopes import mean_jacobians, squared_norms, token_counts
from analysis.slots import Layered
from analysis.statistic import State


@measure(
    title="Linear share of an expert",
    question="Does an expert do the same to every token, or does its Jacobian turn with the input?",
    unit="share of the Jacobian's energy (0 to 1)",
    family="function",
    source="Ours: |mean J|^2 / mean |J|^2, with the mean Jacobian of Liu 2026, arXiv 2605.16349",
    axes=("layer", "expert"),
    null="chance is no point of this scale: 1 is an expert that is linear on these tokens, 0 one whose slopes cancel",
)
def jacobian_linear_share(
    slope_sums: State, gate_weight: Layered, up_weight: Layered, down_weight: Layered, *, corrected: bool = True
) -> Values:
    """|mean over tokens of J|^2 / (mean over tokens of |J|^2) on the common tokens, in the Frobenius norm.

    Both from the same eight probes, one per token. `corrected` takes from both what n tokens of a mean of 0 would leave
    in the numerator, 1/n of the denominator.

    Formula:
        L_e = (s - 1/n) / (1 - 1/n);  s = mean_t |M v_t|^2 / mean_t |J(x_t) v_t|^2;  M = mean_t J(x_t)
        J(x_t): Jacobian of expert e at common token t, of n; v_t: one of eight fixed probes, E[v v'] = I, by the
        token's hash. corrected off: L_e = s.

    Returns:
        Layer by expert, 0 to 1; corrected values can fall below 0 by noise. NaN with fewer than two common tokens.

    Raises:
        Nothing of its own.

    Source:
        Ours; probes: Hutchinson 1990.

    Caveat:
        Over the common tokens, not those the router would send: there an expert may be nearer to linear.
    """
    numerator = []
    for layer, jacobians in enumerate(mean_jacobians(slope_sums, (gate_weight, up_weight, down_weight), "common")):
        directions = probes(slope_sums.shape.model, slope_sums["probed"].shape[-1])
        sizes = squared_norms(jacobians.along(directions.to(jacobians.up.device)))
        weight = slope_sums["probed"].sum(0)[layer].double()
        numerator.append(sizes @ weight / weight.sum())
    tokens = token_counts(slope_sums, "common").double()
    squared = slope_sums["products"].sum(0).diagonal(dim1=-2, dim2=-1) / tokens
    share = torch.stack(numerator) / squared
    if corrected:
        share = (share * tokens - 1) / (tokens - 1)
    share = torch.where(tokens > 1, share, torch.nan)
    facts = {"mean over experts": float(share.nanmean()), "common tokens": int(tokens.min())}
    return Values(share, facts=facts, caveats=_said(share, tokens))


def _said(share: Tensor, tokens: Tensor) -> tuple[str, ...]:
    if not bool(share.isnan().any()):
        return ()
    few = bool((tokens < 2).any())
    return ("NaN: fewer than two common tokens." if few else "NaN: an expert whose Jacobian is 0 everywhere.",)
