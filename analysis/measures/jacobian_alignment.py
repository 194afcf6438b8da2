"""Whether experts do the same to their input, whatever their weights look like."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis import beside
from analysis.cosines import off_diagonal
from analysis.jacobians import PROBES, MeanJacobians, Method, cosines, products
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.slopes import mean_jacobians, shuffled_down, token_counts, without_tokens
from analysis.slots import Layered
from analysis.statistic import State
from analysis.token_jacobians import PAIRS, drawn_spread

Tokens = Literal["common", "served", "each"]
Baseline = Literal["random experts", "shuffled outputs"]

_PAIRS = 400


@measure(
    title="Jacobian alignment",
    question="Do two experts do the same thing to their input?",
    unit="cosine between Jacobians (-1 to 1)",
    family="function",
    source="Liu 2026, arXiv 2605.16349; which tokens and how averaged are not stated there, so they are choices here",
    axes=("layer", "expert", "expert_b"),
    slow=True,
)
def jacobian_alignment(
    slope_sums: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    tokens: Tokens = "common",
    method: Method = "auto",
    baseline: Baseline = "random experts",
) -> Values:
    """<J_e, J_f> / (|J_e| |J_f|) in the Frobenius product, J = dy/dx of the expert alone, router and weight left out.

    `common` and `served`: J is the mean Jacobian over the common tokens, or over each expert's own. `each`: products
    and squared norms are averaged over the common tokens before dividing (one probe per token). `exact` multiplies
    every mean Jacobian out; `sketch` sends 64 fixed orthogonal probes through; `auto` is exact where that takes about a
    second per layer. `baseline` chooses the null. A shared expert has the last row; its own tokens are all of them.

    Formula:
        A_ef = tr(J_e'J_f) / (|J_e|_F |J_f|_F);  J_e = W_down (diag(a) W_gate + diag(b) W_up)
        a, b: d phi / d gate and d phi / d up of each hidden neuron, mean over the common tokens (`served`: e's own).
        each: sum_t tr(J_e(x_t)'J_f(x_t)) / sqrt(sum_t |J_e(x_t)|^2 sum_t |J_f(x_t)|^2), each term by
        (J_e(x_t) v_t)'(J_f(x_t) v_t), v_t the probe of the token: one of 4096 fixed ones, by its hash.

    Returns:
        Layer by expert by expert, -1 to 1; the diagonal is 1. NaN for an expert without tokens. Where a shared expert
        serves every token, E + 1 by E + 1, that one last; means over pairs leave it out and have it as a fact.

    Raises:
        Nothing of its own.

    Source:
        Liu 2026, arXiv 2605.16349 (mean Jacobians); closed form, blocks and `each`: ours.

    Caveat:
        Any two independently initialised experts are near 0: a low value alone is no sign of specialisation. Compare it
        with the null and with step 0. The null of random experts takes gate and up projections for unrelated: where
        they are alike (upcycled models) chance is wider, sqrt(1 + d/h) times for equal normal ones of h neurons; the
        null of shuffled outputs keeps them. Few tokens add noise to each mean Jacobian and pull cosines towards 0. Over
        served tokens, experts are compared on different inputs.
    """
    shape = slope_sums.shape
    if tokens == "each":
        sums = [slope_sums[name].sum(0) for name in ("products", "shared_products", "shared_square")]
        counts, facts = token_counts(slope_sums, "common"), _facts_of_each(slope_sums)
        gram = beside.bordered(*sums) / counts[:, :1, None]
    else:
        weights = (gate_weight, up_weight, down_weight)
        shared = (shared_gate_weight, shared_up_weight, shared_down_weight)
        layers = [products(j, method) for j in mean_jacobians(slope_sums, weights, tokens, shared)]
        gram = torch.stack([values for values, _ in layers])
        facts, counts = _facts_of_method([error for _, error in layers]), token_counts(slope_sums, tokens)
    found = cosines(gram)
    pairs = off_diagonal(beside.parted(found, shape.experts)[0])
    facts |= {
        "mean over pairs": float(pairs.nanmean()),
        "largest": float(pairs[~pairs.isnan()].max()) if bool((~pairs.isnan()).any()) else float("nan"),
        "pairs": int((~pairs.isnan()).sum()),
        "fewest tokens of a mean": int(counts.min()),
    } | beside.fact(found, shape)
    caveats = without_tokens(counts) or _flat(found)
    return Values(found, beside.axes(shape), caveats, facts, {"gram": gram.float()})


@jacobian_alignment.chance
def null(
    slope_sums: State,
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    tokens: Tokens,
    method: Method,
    baseline: Baseline,
    generator: torch.Generator,
) -> Chance:
    """Independent random experts, or these experts with each one's output dimensions shuffled, signs too.

    For `each`, both keep the tokens' slopes and probes, so the noise of the probes is in the band; down projections are
    random, or outputs turned at random.

    Returns:
        Cosines: mean and 95 % band for two different experts, per layer; 1 on the diagonal.

    Source:
        Ours: for down projections of independent normal entries the variance of the cosine is <G_e, G_f> / (d tr G_e
        tr G_f), G = A'A of the inner map A = diag(a) W_gate + diag(b) W_up. If the inner maps are unrelated too that is
        1/d^2; if they are the same normal one, 1/d^2 + 1/(dh), for h hidden neurons. Shuffled and `each`: drawn.
    """
    same = torch.eye(beside.count(slope_sums.shape), dtype=torch.bool)
    if tokens == "each":
        spread, how = _spread_of_each(slope_sums, baseline)
        centre, low, high = torch.zeros_like(spread), -spread, spread
    elif baseline == "random experts":
        spread, model = 1.96 / slope_sums.shape.model, slope_sums.shape.model
        how = f"independent random experts, their gate and up projections unrelated too: sd 1/{model}"
        centre, low, high = (torch.tensor(x, dtype=torch.float64) for x in (0.0, -spread, spread))
    else:
        weights = (gate_weight, up_weight, down_weight)
        shared = (shared_gate_weight, shared_up_weight, shared_down_weight)
        over = "served" if tokens == "served" else "common"
        drawn = [_shuffled(j, method, generator) for j in mean_jacobians(slope_sums, weights, over, shared)]
        bands = [(d.mean(), *central_band(d)) for d in drawn]
        centre, low, high = (torch.stack(part)[:, None, None] for part in zip(*bands, strict=True))
        how = f"{len(drawn[0])} pairs a layer of experts with shuffled output dimensions"
    centre, low, high = (torch.where(same, torch.ones_like(x), x) for x in (centre, low, high))
    return Chance(centre, low, high, how)


def _spread_of_each(slope_sums: State, baseline: Baseline) -> tuple[Float[Tensor, "layer every every"], str]:
    """Half the width of the band, one for pairs of routed experts and one for pairs with the shared expert."""
    shape, kind = slope_sums.shape, 0 if baseline == "random experts" else 1
    routed = drawn_spread(slope_sums["drawn"].sum(0), shape.model)[:, kind, None, None]
    shared = drawn_spread(slope_sums["shared_drawn"].sum(0), shape.model)[..., kind, None]
    routed, own = routed.expand(-1, shape.experts, shape.experts), shared.expand(-1, -1, shared.shape[1])
    spread = 1.96 * beside.bordered(routed, shared.expand(-1, -1, shape.experts), own).sqrt()
    what = "down projections are random" if kind == 0 else "outputs are turned at random"
    return spread, f"experts of these slopes and probes whose {what}: sd of {PAIRS} drawn pairs a layer"


def _shuffled(jacobians: MeanJacobians, method: Method, generator: torch.Generator) -> Float[Tensor, " pair"]:
    alive = sum(not bool(own.up_slope[expert].isnan().any()) for own, expert in jacobians.every)
    # By size: a new numbering of the experts must draw the same.
    order = jacobians.up_slope.norm(dim=-1).argsort()
    pairs = max(1, alive * (alive - 1) // 2)
    found = []
    for _ in range(-(-_PAIRS // pairs)):
        values = off_diagonal(cosines(products(shuffled_down(jacobians, order, generator), method)[0]))
        found.append(values[~values.isnan()])
    drawn = torch.cat(found)
    return drawn if len(drawn) else torch.full((1,), torch.nan, dtype=torch.float64)


def _facts_of_each(slope_sums: State) -> dict[str, int | float | str]:
    return {"method": "probes", "probes": int(slope_sums["common"].sum(0).min())}


def _facts_of_method(errors: list[float]) -> dict[str, int | float | str]:
    if max(errors) == 0:
        return {"method": "exact"}
    return {"method": "sketch", "probes": PROBES, "largest standard error of the sketch": max(errors)}


def _flat(found: Float[Tensor, "layer expert expert"]) -> tuple[str, ...]:
    return ("NaN: an expert with a mean Jacobian of 0 has no direction.",) if bool(found.isnan().any()) else ()
