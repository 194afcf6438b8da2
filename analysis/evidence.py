"""How alike any expert of one checkpoint is to any of another, by different evidence, and how alike chance makes them.

Every kind is a cosine of vectors, 1 for the same expert under another number and 0 on average for unrelated ones. What
is compared with what is not known beforehand, so the bound is that of the most alike of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from scipy.stats import beta
from torch import Tensor

from analysis.alignment import same_layers, same_tokens, same_width
from analysis.centroids import centroids
from analysis.cosines import centred_rows, unit_rows
from analysis.jacobians import cosines, directions, products
from analysis.measure import Inputs
from analysis.slopes import mean_jacobians
from analysis.unrelated import Drawn, beside_another_prompt, correlations, turned

Evidence = Literal["co-selection", "router row", "centroid", "jacobian", "output"]

LEVEL = 0.05
"""How often the best of all pairs of a layer passes the bound where no expert of one side is one of the other."""

_STEPS = 60  # halvings: to the last digit


@dataclass(frozen=True)
class Likeness:
    """Cosines of all pairs of each layer (NaN where an expert has none), and what the best of chance reaches.

    `unrelated` draws the cosines of the same two sides with every relation between them undone; a mixture has none.
    """

    cosines: Float[Tensor, "layer expert expert_b"]
    bound: Float[Tensor, "layer expert expert_b"]
    unrelated: Drawn | None = None


def likeness(a: Inputs, b: Inputs, evidence: Evidence, level: float = LEVEL) -> Likeness:
    """Cosines of all pairs of an expert of a and one of b, and the bound of chance.

    co-selection: of "who takes this token" over the tokens, centred. router row: of rows, centred. centroid: of the
    mean input of served tokens, minus that of all tokens. jacobian: of mean Jacobians over the common tokens, output:
    of mean outputs over them, both minus their mean over experts.

    Args:
        a: What one checkpoint brings, whatever this evidence reads among it.
        b: The other.
        evidence: By what they are compared.
        level: How often the most alike of all pairs of a layer passes the bound by chance.

    Returns:
        Cosines, -1 to 1, NaN for an expert of which there is no evidence; bounds, 0 to 1.

    Raises:
        NotComparable: If layers or widths differ (but for co-selection), or no tokens end together (for it).

    Source:
        Ours.
    """
    same_layers(a, b)
    return _KINDS[evidence](a, b, level)


def mixture(a: Inputs, b: Inputs, weights: Mapping[Evidence, float]) -> Likeness:
    """The weighted mean of several kinds of evidence; a pair that lacks one kind takes the mean of the others.

    Args:
        a: What one checkpoint brings.
        b: The other.
        weights: How much each kind counts, 0 or more and not all 0.

    Returns:
        As `likeness`. The mean of m bounds at an m-th of the level each: the mean of cosines passes it only where one
        of them passes its own.

    Source:
        Ours; Bonferroni 1936.
    """
    used: dict[Evidence, float] = {kind: weight for kind, weight in weights.items() if weight > 0}
    found = [likeness(a, b, kind, LEVEL / len(used)) for kind in used]
    share = torch.tensor(list(used.values()), dtype=torch.float64)[:, None, None, None]
    each, bounds = (torch.stack([getattr(one, part) for one in found]) for part in ("cosines", "bound"))
    there = torch.where(each.isnan(), 0.0, share)
    whole = there.sum(0)
    both = ((each.nan_to_num() * there).sum(0) / whole, (bounds.nan_to_num() * there).sum(0) / whole)
    return Likeness(*both)


def selections(side: Inputs, layer: int) -> Float[Tensor, "token expert"]:
    """Who takes each token: 1 or 0, or combine weights where every token uses every expert.

    Returns:
        One row per token, in the order of the tokens.

    Source:
        Ours.
    """
    experts, routes = side.shape.experts, side.token_routes
    indices = routes["indices"][:, layer].long()
    # Identity experts share a column of their own, which is cut off.
    taken = torch.zeros(len(indices), experts + 1, dtype=torch.float64)
    given = routes["weights"][:, layer].double() if side.shape.soft else torch.ones(indices.shape, dtype=torch.float64)
    return taken.scatter_(1, indices.clamp(max=experts), given)[:, :experts]


def joint_jacobians(a: Inputs, b: Inputs) -> Float[Tensor, "layer both both"]:
    """Products of the mean Jacobians over the common tokens, the experts of b behind those of a.

    Returns:
        In the squared unit of the Jacobian; NaN for an expert without tokens.

    Raises:
        NotComparable: If layers or widths differ.

    Source:
        Liu 2026, arXiv 2605.16349, for mean Jacobians; between two checkpoints: ours.
    """
    same_layers(a, b)
    same_width(a, b, "their Jacobians")
    sides = (
        mean_jacobians(side.slope_sums, (side.gate_weight, side.up_weight, side.down_weight), "common")
        for side in (a, b)
    )
    joined = (replace(first, beside=second) for first, second in zip(*sides, strict=True))
    return torch.stack([products(both, "auto")[0] for both in joined])


def seen_together(a: Inputs, b: Inputs) -> int:
    """In how many directions of the input `joint_jacobians` sees each of them.

    Returns:
        1 to `model`.

    Source:
        Ours.
    """
    return directions(a.shape.model, [s.shape.hidden for s in (a, b) for _ in range(s.shape.experts)], "auto")


def _by_selection(a: Inputs, b: Inputs, level: float) -> Likeness:
    tokens, found, bounds = same_tokens(a, b), [], []
    for layer in range(len(a.shape.layers)):
        first, second = selections(a, layer), selections(b, layer)
        one, other, both = first.sum(0)[:, None], second.sum(0), first.mT @ second
        if a.shape.soft or b.shape.soft:
            found.append(correlations(first, second))
            bounds.append(_bound(max(tokens - 1, 1), found[-1].shape, level))
            continue
        spread = (one * (tokens - one)).sqrt() * (other * (tokens - other)).sqrt()
        found.append(torch.where(spread > 0, (tokens * both - one * other) / spread, torch.nan).clamp(-1, 1))
        reached = _by_chance_together(one, other, tokens, level / max(found[-1].numel(), 1))
        bounds.append(((tokens * reached - one * other) / spread).nan_to_num(nan=1.0).clamp(0, 1))
    return Likeness(torch.stack(found), torch.stack(bounds), partial(_beside_other_prompts, a, b))


def _beside_other_prompts(
    a: Inputs, b: Inputs, draws: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "draw expert expert_b"]]:
    orders = [beside_another_prompt(b.token_routes["prompt"], generator) for _ in range(draws)]
    for layer in range(len(a.shape.layers)):
        first, second = selections(a, layer), selections(b, layer)
        yield torch.stack([correlations(first, second[order]) for order in orders])


def _by_chance_together(
    one: Float[Tensor, "expert 1"], other: Float[Tensor, " expert_b"], tokens: int, level: float
) -> Float[Tensor, "expert expert_b"]:
    """How many tokens two blind choices of so many share, but for `level`: Hoeffding 1963, Theorem 1 and section 6.

    P(X >= x) <= exp(-n KL(x/n | p)) for n draws without replacement at rate p; the root is between np and n. More than
    n where even all n together are no surprise.
    """
    n, p = torch.minimum(one, other), torch.maximum(one, other) / max(tokens, 1)
    wanted = -math.log(level)
    low, high = p.clone(), torch.ones_like(p)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        passed = n * _divergence(middle, p) > wanted
        low, high = torch.where(passed, low, middle), torch.where(passed, middle, high)
    return torch.where(n * _divergence(torch.ones_like(p), p) > wanted, n * high, tokens)


def _divergence(x: Float[Tensor, "*case"], p: Float[Tensor, "*case"]) -> Float[Tensor, "*case"]:
    return torch.xlogy(x, x) - torch.xlogy(x, p) + torch.xlogy(1 - x, 1 - x) - torch.xlogy(1 - x, 1 - p)


def _by_rows(a: Inputs, b: Inputs, level: float) -> Likeness:
    model = same_width(a, b, "router rows")
    first, second = (centred_rows(side.router_weight.double()) for side in (a, b))
    return _of_vectors(first, second, model, level)


def _by_centroids(a: Inputs, b: Inputs, level: float) -> Likeness:
    model = same_width(a, b, "centroids")
    first, second = (centroids(side.centroid_sums, "centred") for side in (a, b))
    return _of_vectors(first, second, model, level)


def _by_outputs(a: Inputs, b: Inputs, level: float) -> Likeness:
    model = same_width(a, b, "outputs")
    first, second = (centred_rows(side.output_sums["common_output"].sum(0)) for side in (a, b))
    return _of_vectors(first, second, model, level)


def _by_jacobians(a: Inputs, b: Inputs, level: float) -> Likeness:
    joint, own = joint_jacobians(a, b), a.shape.experts
    centre = torch.eye(joint.shape[-1], dtype=torch.float64)
    for side in (slice(own), slice(own, None)):
        centre[side, side] -= 1 / len(centre[side])
    centred = centre @ joint @ centre
    # What rounding leaves of equal Jacobians has no direction worth a cosine.
    nothing = centred.diagonal(dim1=-2, dim2=-1) <= 1e-12 * joint.diagonal(dim1=-2, dim2=-1)
    whole = cosines(centred.masked_fill(nothing[..., None], torch.nan))
    found = whole[:, :own, own:]
    # Of independent random experts the cosine has standard deviation 1/d: as directions in d^2 dimensions, or in those
    # that probes see.
    dimensions = a.shape.model * seen_together(a, b)
    bound = _bound(dimensions, found.shape[1:], level)
    return Likeness(
        found, bound.expand_as(found), partial(_turned, whole[:, :own, :own], whole[:, own:, own:], dimensions)
    )


def _turned(
    a: Float[Tensor, "layer expert expert"],
    b: Float[Tensor, "layer expert_b expert_b"],
    dimensions: int,
    draws: int,
    generator: torch.Generator,
) -> Iterator[Float[Tensor, "draw expert expert_b"]]:
    for first, second in zip(a, b, strict=True):
        yield turned(first, second, dimensions, draws, generator)


def _of_vectors(
    a: Float[Tensor, "layer expert model"], b: Float[Tensor, "layer expert_b model"], dimensions: int, level: float
) -> Likeness:
    bound = _bound(dimensions, torch.Size((a.shape[1], b.shape[1])), level)
    found = _cosines(a, b)
    drawn = partial(_turned, _cosines(a, a), _cosines(b, b), dimensions)
    return Likeness(found, bound.expand_as(found), drawn)


def _cosines(
    a: Float[Tensor, "*case expert entry"], b: Float[Tensor, "*case expert_b entry"]
) -> Float[Tensor, "*case expert expert_b"]:
    return (unit_rows(a) @ unit_rows(b).mT).clamp(-1, 1)


def _bound(dimensions: int, pairs: torch.Size, level: float) -> Float[Tensor, "expert expert_b"]:
    """The cosine that the best of all pairs of unrelated directions passes at this rate, at most."""
    tail = min(2 * level / max(pairs.numel(), 1), 1.0)
    reached = math.sqrt(beta.isf(tail, 0.5, (dimensions - 1) / 2)) if dimensions > 1 else 1.0
    return torch.full(pairs, reached, dtype=torch.float64)


_KINDS: dict[Evidence, Callable[[Inputs, Inputs, float], Likeness]] = {
    "co-selection": _by_selection,
    "router row": _by_rows,
    "centroid": _by_centroids,
    "jacobian": _by_jacobians,
    "output": _by_outputs,
}
