"""How far each expert of one checkpoint does something else to its input than its partner in another."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.evidence import joint_jacobians, seen_together
from analysis.jacobians import cosines, scatter
from analysis.matching import ALONE, Matching, in_order, partners, random_pairs, told, why_alone
from analysis.measure import Chance, Inputs, Values, measure
from analysis.slopes import token_counts, without_tokens


@measure(
    title="Jacobian drift",
    question="Does an expert of b do to its input what its counterpart in a does?",
    unit="1 - cosine of mean Jacobians (0 to 2; 0 is the same function, 1 unrelated)",
    family="compare",
    source="Mean Jacobians: Liu 2026, arXiv 2605.16349; between two checkpoints: ours",
    axes=("layer", "expert"),
    reads=("slope_sums", "gate_weight", "up_weight", "down_weight", "token_routes"),
    slow=True,  # as jacobian_alignment, for two models at once
)
def jacobian_drift(a: Inputs, b: Inputs, *, matching: Matching = "co-selection") -> Values:
    """1 - cos of the mean Jacobians over the common tokens of each expert of a and of its partner in b.

    Router and combine weight are left out. Exact, or with 64 fixed probes where that takes too long; the same probes
    for both sides.

    Formula:
        D_e = 1 - tr(J_e'K_m(e)) / (|J_e|_F |K_m(e)|_F);  J_e = W_down (diag(s) W_gate + diag(t) W_up)
        s, t: mean slopes of phi by gate and by up over the common tokens of a; K_f: the same of expert f of b, over the
        inputs that the same tokens have there; m(e): partner in b of expert e.

    Returns:
        Layer by expert of a, 0 to 2. NaN for an expert without partner, and without common tokens.

    Raises:
        NotComparable: If layers, widths or (`identity`) numbers of experts differ, or no tokens end together.

    Source:
        Liu 2026, arXiv 2605.16349, for mean Jacobians.

    Caveat:
        The two sides ask the same tokens, but layers below have made other inputs of them: a drift may lie there.
        Separately trained models write into hidden states of their own, and are near 1 whatever their experts do. Two
        experts that swapped hidden neurons are the same function, and at 0.
    """
    pairs = partners(a, b, matching)
    values = 1 - in_order(pairs, _cosines(a, b).mT).diagonal(dim1=1, dim2=2)
    tokens = torch.cat([token_counts(side.slope_sums, "common") for side in (a, b)], -1)
    facts = told(pairs, matching) | {
        "mean over experts": float(values.nanmean()),
        "fewest tokens of a mean": int(tokens.min()),
    }
    caveats = why_alone(pairs == ALONE) + without_tokens(tokens)
    if bool((values.isnan() & (pairs != ALONE)).any()) and bool((tokens > 0).all()):
        caveats += ("NaN: an expert with a mean Jacobian of 0 has no direction.",)
    return Values(values, facts=facts, caveats=caveats)


@jacobian_drift.chance
def null(a: Inputs, b: Inputs, *, matching: Matching, generator: torch.Generator) -> Chance:
    """Independent random experts.

    Returns:
        1 and the central 95 % band, the same for all. Facts: layers whose pairs are nearer than the nearest of random
        pairs of the same experts, and its p.

    Source:
        The cosine of two independent random d x d maps has standard deviation 1/d, and where p probes see them
        1/sqrt(dp). Random pairs: ours; max-statistic
        over layers: Westfall & Young 1993.
    """
    facts, by_layer = random_pairs(_cosines(a, b), partners(a, b, matching), generator)
    spread, said = scatter(a.shape.model, seen_together(a, b))
    centre, low, high = (torch.tensor(1 + x, dtype=torch.float64) for x in (0.0, -1.96 * spread, 1.96 * spread))
    return Chance(centre, low, high, f"independent random experts: cosine 0, sd {said}", facts, by_layer)


def _cosines(a: Inputs, b: Inputs) -> Float[Tensor, "layer expert expert_b"]:
    return cosines(joint_jacobians(a, b))[:, : a.shape.experts, a.shape.experts :]
