"""How many directions an expert acts along."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis import beside
from analysis.jacobians import MeanJacobians
from analysis.measure import Chance, Values, measure
from analysis.slopes import Over, mean_jacobians, token_counts, without_tokens
from analysis.slots import Layered
from analysis.statistic import State

Summary = Literal["participation", "entropy", "first"]
_DRAWN = 3e9  # operations that the draws for one expert may take
_DRAWS = 40
_DRAWN_EXPERTS = 64


@measure(
    title="Jacobian spectrum",
    question="Along how many directions does an expert act?",
    unit="directions (first: share of the energy)",
    family="function",
    source="Ours, on the mean Jacobian of Liu 2026, arXiv 2605.16349; entropy rank: Roy & Vetterli 2007",
    axes=("layer", "expert"),
    slow=True,
)
def jacobian_spectrum(
    slope_sums: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    tokens: Over = "common",
    summary: Summary = "participation",
) -> Values:
    """The squared singular values e_i of the mean Jacobian in one number.

    `participation`: (sum e)^2 / sum e^2; `entropy`: exp(-sum p log p) with p = e / sum e; `first`: the largest p. A
    shared expert has the last row; its own tokens are all of them.

    Formula:
        P_e = (sum_i q_i)^2 / sum_i q_i^2;  q_i = i-th squared singular value of J_e
        J_e = W_down (diag(a) W_gate + diag(b) W_up), the mean Jacobian: a, b mean slopes of phi over the common tokens.
        entropy: exp(-sum_i p_i ln p_i), first: max_i p_i, with p_i = q_i / sum_j q_j.

    Returns:
        Layer by expert: 1 to the smaller of hidden and model width, or a share above 0, to 1 (`first`). NaN for an
        expert without tokens. Where a shared expert serves every token, E + 1 experts, that one last; the mean over
        experts leaves it out and has it as a fact.

    Raises:
        Nothing of its own.

    Source:
        Participation ratio: Kramer & MacKinnon 1993; entropy rank: Roy & Vetterli 2007.

    Caveat:
        The null is one of random matrices of this size; trained matrices are not flat, so a lower number is not news by
        itself. A mean over few tokens keeps slopes of single tokens and looks wider. A shared expert may have more
        neurons than a routed one, and more directions for that reason.
    """
    weights = (gate_weight, up_weight, down_weight)
    shared = (shared_gate_weight, shared_up_weight, shared_down_weight)
    found = torch.stack([_summaries(j, summary) for j in mean_jacobians(slope_sums, weights, tokens, shared)])
    counts = token_counts(slope_sums, tokens)
    facts = beside.averages(found, slope_sums.shape.experts) | {"most possible": _most(slope_sums)}
    flat = ("NaN: an expert whose mean Jacobian is 0.",) if bool(found.isnan().any()) else ()
    return Values(found, facts=facts, caveats=without_tokens(counts) or flat)


@jacobian_spectrum.chance
def null(
    slope_sums: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    tokens: Over,
    summary: Summary,
    generator: torch.Generator,
) -> Chance:
    """Random matrices between the same mean slopes: normal entries in gate, up and down, of each expert's width.

    Returns:
        Mean and 95 % band per layer and expert, in the unit of the summary.

    Source:
        Ours, drawn: the sizes of an expert's slopes alone narrow its spectrum.
    """
    names = ("gate", "up") if tokens == "served" else ("common_gate", "common_up")
    routed, shared = (
        torch.stack([slope_sums[side + name].sum(0) for name in names]).square().sum(0).sqrt()
        for side in ("", "shared_")
    )
    bands = [_band(routed, slope_sums.shape.model, summary, generator)]
    if slope_sums.shape.shared:
        bands.append(_band(shared[:, None], slope_sums.shape.model, summary, generator))
    centre, spread = torch.cat([drawn for drawn, _ in bands], -1)
    how = "normal matrices between the same slopes: " + ", and of the shared expert ".join(how for _, how in bands)
    return Chance(centre, centre - 1.96 * spread, centre + 1.96 * spread, how)


def _band(
    size: Float[Tensor, "layer expert hidden"], model: int, summary: Summary, generator: torch.Generator
) -> tuple[Float[Tensor, "two layer expert"], str]:
    """Mean and spread of the draws for experts of one width, whose hidden neurons count as much as these."""
    hidden = size.shape[-1]
    draws = int(max(2, min(_DRAWS, _DRAWN // (4.0 * hidden * min(hidden, model) * (model + hidden)))))
    relative = (size / size.mean(-1, keepdim=True)).flatten(0, 1)
    # By spread: a new numbering of the experts must draw the same.
    order = relative.square().mean(-1).nan_to_num(0).argsort()
    places = torch.linspace(0, len(order) - 1, min(len(order), _DRAWN_EXPERTS)).round().long()
    drawn = torch.stack(
        [torch.stack([_drawn(relative[c], model, summary, generator) for _ in range(draws)]) for c in order[places]]
    )
    # An expert that was not drawn for stands beside one of much the same spread.
    near = torch.linspace(0, len(places) - 1, len(order)).round().long()
    centre, spread = torch.empty(2, len(order), dtype=torch.float64)
    centre[order], spread[order] = drawn.mean(-1)[near], drawn.std(-1)[near]
    return torch.stack([centre, spread]).unflatten(1, size.shape[:2]), f"{draws} draws of {hidden} x {model}"


def _summaries(jacobians: MeanJacobians, summary: Summary) -> Float[Tensor, " every"]:
    found = []
    for own, expert in jacobians.every:
        found.append(_summary(own.inner(expert), own.down[expert].to(own.dtype), summary))
    return torch.stack(found)


def _summary(
    inner: Float[Tensor, "hidden model"], down: Float[Tensor, "model hidden"], summary: Summary
) -> Float[Tensor, ""]:
    """Through hidden x hidden Grams: (D A)'(D A) has the eigenvalues of (D'D)(A A'). Through itself where wider."""
    if len(inner) > inner.shape[1]:
        down, inner = down @ inner, torch.eye(inner.shape[1], dtype=inner.dtype, device=inner.device)
    first, second = (down.mT @ down).double(), (inner @ inner.mT).double()
    product = first @ second
    if summary == "participation":
        return product.diagonal().sum().square() / (product * product.mT).sum()
    if not bool(product.isfinite().all()):
        return torch.tensor(torch.nan, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(first)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    energy = torch.linalg.eigvalsh(root @ second @ root).clamp(min=0)
    share = energy / energy.sum()
    return share.max() if summary == "first" else torch.special.entr(share).sum().exp()


def _drawn(
    size: Float[Tensor, " hidden"], model: int, summary: Summary, generator: torch.Generator
) -> Float[Tensor, ""]:
    """One expert of normal entries whose hidden neurons count as much as these."""
    inner, down = torch.randn(2, len(size), model, dtype=torch.float64, generator=generator)
    return _summary(size[:, None] * inner, down.mT, summary)


def _most(slope_sums: State) -> int:
    return min(slope_sums.shape.hidden, slope_sums.shape.model)
