"""How much of what an expert does is the same linear map for every token."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis import beside
from analysis.jacobians import MeanJacobians
from analysis.measure import Values, measure
from analysis.slopes import mean_jacobians
from analysis.slots import Layered
from analysis.statistic import State
from analysis.token_jacobians import sketched_energy


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
    slope_sums: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    corrected: bool = True,
) -> Values:
    """|mean over tokens of J|^2 / (mean over tokens of |J|^2) on the common tokens, in the Frobenius norm.

    Both between the same fixed directions at every token, so the mean's energy is never above the mean energy.
    `corrected` takes from both what n tokens of a mean of 0 would leave in the numerator, 1/n of the denominator. A
    shared expert has the last row, over the same tokens.

    Formula:
        L_e = (s - 1/n) / (1 - 1/n);  s = |M|^2 / mean_t |J(x_t)|^2;  M = mean_t J(x_t)
        J(x_t): Jacobian of expert e at common token t, of n; |J|^2: mean of (a'J b)^2 over 32 fixed directions a and 16
        directions b, or as many as the model has dimensions, which is exact. corrected off: L_e = s.

    Returns:
        Layer by expert, at most 1; 0 to 1 uncorrected, corrected down to -1/(n-1). NaN with fewer than two common
        tokens. Where a shared expert serves every token, E + 1 experts, that one last; the mean over experts leaves it
        out and has it as a fact.

    Raises:
        Nothing of its own.

    Source:
        Ours; directions: Hutchinson 1990.

    Caveat:
        Over the common tokens, not those the router would send: there an expert may be nearer to linear. Few tokens
        leave it uncertain, below 0 too; no number of tokens takes out the noise of the fixed directions.
    """
    weights, tokens = (gate_weight, up_weight, down_weight), slope_sums["common"].sum(0)[:, None].double()
    shared = (shared_gate_weight, shared_up_weight, shared_down_weight)
    of_mean = torch.stack([_energies(layer) for layer in mean_jacobians(slope_sums, weights, "common", shared)])
    energy = torch.cat([slope_sums[name].sum(0) for name in ("energy", "shared_energy")], 1)
    share = of_mean.to(tokens) * tokens / energy
    if corrected:
        share = (share * tokens - 1) / (tokens - 1)
    share = torch.where(tokens > 1, share, torch.nan)
    facts = beside.averages(share, slope_sums.shape.experts) | {"common tokens": int(tokens.min())}
    return Values(share, facts=facts, caveats=_said(share, tokens))


def _energies(layer: MeanJacobians) -> Float[Tensor, " every"]:
    found = []
    for own, expert in layer.every:
        gate = None if own.gate is None else own.gate[expert]
        by_gate = None if own.gate_slope is None else own.gate_slope[expert, None]
        weights = (gate, own.up[expert], own.down[expert])
        found.append(sketched_energy(weights, (by_gate, own.up_slope[expert, None]))[0])
    return torch.stack(found)


def _said(share: Tensor, tokens: Tensor) -> tuple[str, ...]:
    if not bool(share.isnan().any()):
        return ()
    few = bool((tokens < 2).any())
    return ("NaN: fewer than two common tokens." if few else "NaN: an expert whose Jacobian is 0 everywhere.",)
