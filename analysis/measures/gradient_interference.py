"""How hard the balance loss pulls on the router, next to the task."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.gate_rules import balance_gradient, z_gradient
from analysis.knob import Range
from analysis.loads import over_layers
from analysis.measure import Values, measure
from analysis.statistic import State

Term = Literal["balance", "z"]


@measure(
    title="Gradient interference",
    question="How hard does the auxiliary loss pull on the router's rows, next to the task?",
    unit="ratio of gradient norms (0 and up; 1: equally hard)",
    family="coupling",
    source="Ours, after Ahrac, Hochwald & Geva 2026, arXiv 2605.12476; balance loss as Megatron scales it; z-loss: "
    "Zoph et al. 2022, arXiv 2202.08906",
    axes=("layer",),
    null="a ratio of two gradients has no chance value: 1 is where both pull equally hard",
)
def gradient_interference(
    gradient_rows: State,
    prompt_counts: State,
    *,
    term: Term = "balance",
    coefficient: Annotated[float, Range(0)] = 0.01,
) -> Values:
    """|D' X| of the auxiliary loss over |D' X| of the task, by the router's rows, on up to 512 sampled tokens.

    D is the gradient by each token's logits (rows token, columns expert), X the router's inputs; both losses are means
    over tokens. `balance`: coefficient E sum f_j mean p_j, its loads f those of all tokens; `z`: coefficient mean
    squared logsumexp. The default coefficient is OLMoE's for `balance` (0.001 for `z`), a guess for any other model.

    Formula:
        R = coefficient |A'X|_F / |D'X|_F;  A_te = (E/T) p_te (f_e - sum_j f_j p_tj);  D_te = (1/T) dL/ds_te
        X: router inputs of T sampled tokens; p: router probabilities; f: share of e in all selections of all tokens. L:
        summed next-token cross-entropy; s: logits. z: A_te = (2/T) logsumexp(s_t) softmax(s_t)_e.

    Returns:
        One ratio per layer, 0 or more. NaN where the router hides its scores or the task does not pull at all.

    Raises:
        BadKnob: If `coefficient` is negative.
        Nothing of its own.

    Source:
        Ours: the closed forms of `analysis.gate_rules`.

    Caveat:
        The model's own coefficient is not read from it: the ratio is proportional to yours. So few tokens leave noise
        in the task's gradient that a training batch averages away: there the ratio is larger. For a sigmoid router the
        scores divided by their sum stand in for p, and the pull through that sum is left out.
    """
    there = gradient_rows["block"] >= 0
    loads = prompt_counts["selected"].sum(0).double()
    loads = loads / loads.sum(-1, keepdim=True)
    facts: dict[str, int | float | str] = {"fewest tokens sampled": int(there.sum(-1).min())}
    rows = [_layer(gradient_rows, layer, there[layer], loads[layer], term) for layer in range(len(loads))]
    ratio, off_task, off_term, agree = torch.stack(rows).unbind(-1)
    ratio = coefficient * ratio
    facts |= over_layers(ratio, gradient_rows.shape.layers, "highest") | {
        "task energy on experts not selected": float(off_task.nanmean()),
        f"{term} energy on experts not selected": float(off_term.nanmean()),
        "cosine between the two gradients": float(agree.nanmean()),
    }
    unknown = "NaN: the router hides its scores, or the task gradient is 0."
    return Values(ratio, facts=facts, caveats=(unknown,) if bool(ratio.isnan().any()) else ())


def _layer(
    gradient_rows: State, layer: int, there: Tensor, loads: Float[Tensor, " expert"], term: Term
) -> Float[Tensor, 4]:
    """Ratio of norms at coefficient 1; share of the squared pull off the selection, of both; their cosine."""
    names = ("input", "logits", "probabilities", "task")
    x, logits, p, task = (gradient_rows[name][layer][there].double() for name in names)
    if not len(x):
        return torch.full((4,), math.nan, dtype=torch.float64)
    own = balance_gradient(p, loads) if term == "balance" else z_gradient(logits)
    left = gradient_rows["selected"][layer][there] != 1
    pulls, off = [], []
    for d in (own, task / len(task)):
        pulls.append(d.mT @ x)
        off.append((d * left).square().sum() / d.square().sum())
    sizes = [pull.norm() for pull in pulls]
    ratio = torch.where(sizes[1] > 0, sizes[0] / sizes[1], torch.nan)
    return torch.stack([ratio, off[1], off[0], (pulls[0] * pulls[1]).sum() / (sizes[0] * sizes[1])])
