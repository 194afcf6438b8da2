"""Whether experts do the same to their input, whatever their weights look like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis import beside
from analysis.cosines import off_diagonal
from analysis.jacobians import PROBES, MeanJacobians, Method, cosines, directions, products, scatter
from analysis.measure import Chance, Inputs, Values, measure
from analysis.nulls import central_band
from analysis.result import Reason
from analysis.shuffled import shuffled_cosines
from analysis.slopes import mean_jacobians, shuffled_down, token_counts, without_tokens
from analysis.slots import Layered, Shape
from analysis.statistic import State
from analysis.token_jacobians import PAIRS, drawn_spread

Tokens = Literal["common", "served", "each"]
Baseline = Literal["random experts", "shuffled weights", "shuffled outputs", "step 0"]
Band = tuple[Float[Tensor, "*case"], Float[Tensor, "*case"], Float[Tensor, "*case"]]
"""Centre, low and high bound of the null, broadcastable to the values."""

_PAIRS = 400


@measure(
    title="Jacobian alignment",
    question="Do two experts do the same thing to their input?",
    unit="cosine between Jacobians (-1 to 1)",
    family="function",
    source="Liu 2026, arXiv 2605.16349; which tokens and how averaged are not stated there, so they are choices here",
    axes=("layer", "expert", "expert_b"),
    slow=True,
    start_if={"baseline": "step 0"},
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
    second per layer. `baseline` chooses the null: `step 0` is what the experts of the same run were before training. A
    shared expert has the last row; its own tokens are all of them.

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
        with the null and with step 0. The nulls of random experts and of shuffled weights take gate and up projections
        for unrelated: where they are alike (upcycled models) chance is wider, sqrt(1 + d/h) times for equal normal ones
        of h neurons; the null of shuffled outputs keeps them. Shuffled weights keep slopes that only the weights as
        they are have on these tokens. Few tokens add noise to each mean Jacobian and pull cosines towards 0. Over
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
    } | beside.fact(found, shape.experts)
    caveats = without_tokens(counts) or _flat(found)
    return Values(found, caveats=caveats, facts=facts, arrays={"gram": gram.float()})


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
    start: Inputs | None = None,
) -> Chance | Reason:
    """Random experts, or these with the entries of each weight matrix shuffled, or with output dimensions shuffled.

    `shuffled weights`: the entries of gate, up and down of each expert change places within their matrix; each hidden
    neuron keeps its mean slopes. `shuffled outputs`: gate and up stay, rows of down change places and signs. For `each`
    slopes and probes of the tokens stay, so the noise of the probes is in the band; down projections are random, or
    outputs turned at random. `step 0`: the same cosines of all pairs of a layer in step 0 of the same run, on the same
    prompts; pairs with a shared expert are a band of their own.

    Returns:
        Cosines: mean and 95 % band for two different experts, per layer; 1 on the diagonal. No null of shuffled weights
        for `each`, nor of `step 0` without such a step. Of that a fact `mean over pairs at step 0`.

    Source:
        Ours: for down projections of independent normal entries the variance of the cosine is <G_e, G_f> / (d tr G_e
        tr G_f), G = A'A of the inner map A = diag(a) W_gate + diag(b) W_up. If the inner maps are unrelated too that is
        1/d^2, as for shuffled weights whose entries have mean 0; if they are the same normal one, 1/d^2 + 1/(dh), for h
        hidden neurons. Where p probes see d directions, 1/(dp) is in place of 1/d^2. Shuffled outputs, `each`: drawn.
    """
    shape, weights = slope_sums.shape, (gate_weight, up_weight, down_weight)
    shared = (shared_gate_weight, shared_up_weight, shared_down_weight)
    if baseline == "step 0":
        return _of_start(start, shape, tokens, method)
    layers = mean_jacobians(slope_sums, weights, "served" if tokens == "served" else "common", shared)
    if tokens == "each" and baseline == "shuffled weights":
        return Reason("slopes of single tokens are not kept, so shuffled weights have no band of them")
    if tokens == "each":
        band, how = _band_of_each(slope_sums, baseline)
    elif baseline == "random experts":
        band, how = _band_of_random(shape.model, _seen(shape, method))
    elif baseline == "shuffled weights":
        band, how = _band_of_weights(layers, _seen(shape, method))
    else:
        band, how = _band_of_outputs(layers, method, generator)
    return Chance(*_own(band, shape), how)


def _own(band: Band, shape: Shape) -> tuple[Float[Tensor, "*cell"], Float[Tensor, "*cell"], Float[Tensor, "*cell"]]:
    """The band with 1 on the diagonal."""
    same = torch.eye(beside.count(shape), dtype=torch.bool)
    centre, low, high = (torch.where(same, torch.ones_like(x), x) for x in band)
    return centre, low, high


def _of_start(start: Inputs | None, shape: Shape, tokens: Tokens, method: Method) -> Chance | Reason:
    if start is None:
        return Reason("no step 0 of the same run is known, or this is step 0; the other baselines need none")
    if (start.shape.layers, beside.count(start.shape)) != (shape.layers, beside.count(shape)):
        return Reason("step 0 of the same run has other layers or another number of experts")
    read = (getattr(start, name) for name in jacobian_alignment.reads)
    raw = jacobian_alignment.function(*read, tokens=tokens, method=method)
    assert isinstance(raw, Values)
    routed, shared, own = beside.parted(raw.values, shape.experts)
    pairs = off_diagonal(routed)
    bands = []
    for of_pairs, of_shared in zip(_drawn(pairs), _drawn(shared.flatten(1)), strict=True):
        bands.append(beside.bordered(of_pairs.expand_as(routed), of_shared.expand_as(shared), own))
    how = f"the {pairs.shape[-1]} pairs of experts of each layer at step 0 of the same run: mean and central 95 %"
    return Chance(
        *_own((bands[0], bands[1], bands[2]), shape), how, {"mean over pairs at step 0": float(pairs.nanmean())}
    )


def _drawn(cosines: Float[Tensor, "layer pair"]) -> Iterator[Float[Tensor, "layer 1 1"]]:
    """Mean and central 95 % of each layer's; NaN without any."""
    ends = torch.tensor([0.025, 0.975], dtype=cosines.dtype)
    empty = torch.full((len(cosines), 1), torch.nan, dtype=cosines.dtype)
    known = cosines if cosines.shape[-1] else empty
    for part in (known.nanmean(-1), *known.nanquantile(ends, -1)):
        yield part[:, None, None]


def _seen(shape: Shape, method: Method) -> int:
    """In how many directions of the input a mean Jacobian is seen."""
    return directions(shape.model, [shape.hidden] * shape.experts + [shape.shared] * min(shape.shared, 1), method)


def _around(centre: Float[Tensor, "*case"], spread: Float[Tensor, "*case"]) -> Band:
    return centre, centre - 1.96 * spread, centre + 1.96 * spread


def _band_of_random(model: int, seen: int) -> tuple[Band, str]:
    spread, said = scatter(model, seen)
    how = f"independent random experts, their gate and up projections unrelated too: sd {said}"
    return _around(torch.zeros((), dtype=torch.float64), torch.tensor(spread, dtype=torch.float64)), how


def _band_of_weights(layers: Iterator[MeanJacobians], seen: int) -> tuple[Band, str]:
    centre, spread = (torch.stack(part) for part in zip(*(shuffled_cosines(j, seen) for j in layers), strict=True))
    how = "experts with the entries of each weight matrix shuffled, mean slopes kept: in closed form"
    return _around(centre, spread), how


def _band_of_outputs(layers: Iterator[MeanJacobians], method: Method, generator: torch.Generator) -> tuple[Band, str]:
    drawn = [_shuffled(jacobians, method, generator) for jacobians in layers]
    bands = [(values.mean(), *central_band(values)) for values in drawn]
    centre, low, high = (torch.stack(part)[:, None, None] for part in zip(*bands, strict=True))
    return (centre, low, high), f"{len(drawn[0])} pairs a layer of experts with shuffled output dimensions"


def _band_of_each(slope_sums: State, baseline: Baseline) -> tuple[Band, str]:
    """One for pairs of routed experts and one for pairs with the shared expert."""
    shape, kind = slope_sums.shape, 0 if baseline == "random experts" else 1
    routed = drawn_spread(slope_sums["drawn"].sum(0), shape.model)[:, kind, None, None]
    shared = drawn_spread(slope_sums["shared_drawn"].sum(0), shape.model)[..., kind, None]
    routed, own = routed.expand(-1, shape.experts, shape.experts), shared.expand(-1, -1, shared.shape[1])
    spread = beside.bordered(routed, shared.expand(-1, -1, shape.experts), own).sqrt()
    what = "down projections are random" if kind == 0 else "outputs are turned at random"
    how = f"experts of these slopes and probes whose {what}: sd of {PAIRS} drawn pairs a layer"
    return _around(torch.zeros_like(spread), spread), how


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
