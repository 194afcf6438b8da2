"""In how many directions an expert's inputs, or its outputs, vary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis import beside
from analysis.linalg import principal_axes
from analysis.measure import Chance, Values, measure
from analysis.result import Reason
from analysis.spec import EMPTY
from analysis.spectra import Quantity, spread
from analysis.statistic import State
from analysis.subspaces import (
    AxisCount,
    Cut,
    Reading,
    beside_zeros,
    cut,
    outputs_of,
    principal,
    row_counts,
    said,
    shared_rows,
    why_nan,
)

Of = Literal["inputs", "outputs"]
DRAWS = 40
OF_OUTPUTS = "Outputs are of the same tokens for all experts, each once: weighting and matched change nothing."
OF_OUTPUT_RANKS = "Outputs are of the same tokens for all experts, each once: weighting, matched and n change nothing."


@measure(
    title="Routed spectrum",
    question="In how many directions do an expert's inputs or outputs vary?",
    unit="share of the variance (0 to 1) for explained; directions (1 to d) for the two ranks",
    family="representation",
    source="Liu 2026, arXiv 2605.16349; n is not stated there, so it is a choice here",
    axes=("layer", "expert"),
    slow=True,  # minutes for 16 layers of 64 experts in 2,048 dimensions
)
def routed_spectrum(
    routed_rows: State,
    common_rows: State,
    expert_rows: State,
    *,
    of: Of = "inputs",
    quantity: Quantity = "explained",
    n: AxisCount = 10,
    weighting: Reading = "scaled",
    matched: bool = True,
) -> Values:
    """Spectrum of the covariance of an expert's inputs, or of its outputs on tokens that all experts are asked about.

    `explained`: share of the first n variances; `participation`: (sum v)^2 / sum v^2; `entropy_rank`: exp of the
    entropy of v / sum v. Inputs are those of the tokens it served: g x (`scaled`), x counted g times (`weighted`) or x
    (`plain`); or g x of all tokens, 0 where it did not serve (`zeros`): the source does not say which, so the default
    is a guess. `matched` takes equally many rows of every expert. Outputs are f(x), of the same tokens for all, once
    each: `weighting` and `matched` have no part in them. In a rank of inputs `n` says only how few rows are too few,
    in one of outputs nothing. A shared expert has the last row: its inputs are those of all tokens, from as many rows
    as the others give, its g the gate on its output, 1 without one.

    Formula:
        R_e = sum over i <= n of v_i / sum_i v_i;  v_1 >= v_2 >= ...: eigenvalues of the covariance of g x
        x: sampled tokens that e served, g their combine weights; n at most half of d. outputs: f_e(x) of the same
        tokens. participation: (sum v)^2 / sum v^2. entropy_rank: exp(-sum_i p_i ln p_i), p_i = v_i / sum_j v_j.

    Returns:
        Layer by expert: 0 to 1 (`explained`), or 1 to d directions. NaN for an expert with too few rows, or whose rows
        do not vary. Where a shared expert serves every token, E + 1 experts, that one last; the mean over experts
        leaves it out and has it as a fact.

    Raises:
        BadKnob: If n is below 1.

    Source:
        Liu 2026, arXiv 2605.16349; participation ratio: Bell & Dean 1970; entropy rank: Roy & Vetterli 2007.

    Caveat:
        Fewer rows alone give fewer directions: no rank exceeds the rows less one. Compare at the same number of rows
        only, with the band of as many tokens of the whole layer, which a dense layer would see, and with a shared
        expert, which sees just these. With `zeros` the mean of g x is a direction of its own, and how often an expert
        is chosen is part of its spectrum; the band is for an expert of average load.
    """
    shape, shared = routed_rows.shape, shared_rows(common_rows)
    size = cut(row_counts(routed_rows), n, shape.model, matched)
    facts: dict[str, int | float | str] = {"axes": size.axes}
    if of == "outputs":
        values = torch.stack([spread(each, quantity, size.axes) for each in _outputs(expert_rows)])
        facts["rows per expert"] = int((expert_rows["hash"] != EMPTY).sum(-1).min())
        caveats = (OF_OUTPUTS if quantity == "explained" else OF_OUTPUT_RANKS,)
    else:
        every = [rows for rows in (routed_rows, shared) if rows is not None]
        values = torch.cat([_inputs(rows, size, weighting, quantity) for rows in every], 1)
        facts["rows per expert"] = size.rows if matched else f"{size.least} to {size.rows}"
        known = torch.cat([row_counts(rows) >= size.least for rows in every], 1)
        caveats = why_nan(known, size) + said(size, n, matched)
    facts |= beside.averages(values, shape.experts)
    if bool(values.isnan().any()) and not any(c.startswith("NaN: ") for c in caveats):
        caveats += ("NaN: rows that are all the same have no spectrum.",)
    return Values(values, caveats=caveats, facts=facts)


@routed_spectrum.chance
def null(
    routed_rows: State,
    common_rows: State,
    expert_rows: State,
    *,
    of: Of,
    quantity: Quantity,
    n: int,
    weighting: Reading,
    matched: bool,
    generator: torch.Generator,
) -> Chance | Reason:
    """The spectrum of as many tokens of the layer, drawn blindly: what routing without preference would show.

    Returns:
        Mean and 95 % band per layer, and of a shared expert, whose g are its own; fact `all tokens`, the mean over
        layers. None for outputs, which are of the same tokens for all experts, nor where experts differ in rows.

    Source:
        Ours: the dense control at matched rows, weights shuffled over tokens.
    """
    if of == "outputs":
        return Reason("all experts are asked about the same tokens: compare them with each other and with the inputs")
    if not matched:
        return Reason("experts differ in their number of rows; matched rows have a band")
    size = cut(row_counts(routed_rows), n, routed_rows.shape.model, matched)
    every = [rows for rows in (routed_rows, shared_rows(common_rows)) if rows is not None]
    bands = []
    for own in every:
        zeros, drawn = _zeros(own) if weighting == "zeros" else None, []
        for layer, there in enumerate(common_rows["hash"] != EMPTY):
            rows = common_rows["input"][layer][there].double()
            # Sorted: which expert a weight came from is not to matter.
            weights = own["weight"][layer][own["hash"][layer] != EMPTY].double().sort().values
            weighed = _blind(rows, weights, size, weighting, None if zeros is None else zeros[layer], generator)
            drawn.append(spread(weighed, quantity, size.axes))
        bands.append(torch.stack(drawn, 1)[..., None].expand(-1, -1, own.shape.experts))
    found = torch.cat(bands, -1)
    mean, half = found.mean(0), 1.96 * found.std(0)
    how = f"{DRAWS} blind draws of {size.rows} of the layer's tokens, mean and 1.96 standard deviations"
    return Chance(mean, mean - half, mean + half, how, {"all tokens": float(found[..., 0].mean())})


def _zeros(routed_rows: State) -> Float[Tensor, " layer"]:
    """Tokens that an expert of average load does not serve, for each that it does; none of a shared one."""
    if "served" not in routed_rows.arrays:
        return torch.zeros(len(routed_rows.shape.layers), dtype=torch.float64)
    served = routed_rows["served"].sum((0, 2)).double()
    return routed_rows["seen"].sum(0) * routed_rows.shape.experts / served.clamp(min=1) - 1


def _blind(
    rows: Float[Tensor, "token model"],
    weights: Float[Tensor, " pair"],
    size: Cut,
    weighting: Reading,
    zeros: Float[Tensor, ""] | None,
    generator: torch.Generator,
) -> Float[Tensor, "draw direction"]:
    count, found = min(size.rows, len(rows)), []
    for _ in range(DRAWS if count and len(weights) else 0):
        x = rows[torch.randperm(len(rows), generator=generator)[:count]]
        g = weights[torch.randint(len(weights), (count,), generator=generator)]
        x = x * g[:, None] if weighting in ("scaled", "zeros") else x
        counted = g if weighting == "weighted" else torch.ones_like(g)
        x, counted = (x, counted) if zeros is None else beside_zeros(x, counted, zeros)
        found.append(principal_axes(x, counted, 1).variances)
    return torch.stack(found) if found else torch.full((DRAWS, 1), torch.nan, dtype=torch.float64)


def _inputs(rows: State, size: Cut, weighting: Reading, quantity: Quantity) -> Float[Tensor, "layer expert"]:
    found = torch.stack([each.variances for each in principal(rows, size, weighting)])
    return spread(found, quantity, size.axes)


def _outputs(expert_rows: State) -> Iterator[Float[Tensor, "every direction"]]:
    """Variances of every expert's outputs, layer by layer."""
    for layer, there in enumerate(expert_rows["hash"] != EMPTY):
        every = outputs_of(expert_rows, layer).nan_to_num(0)
        yield principal_axes(every, there.double().expand(every.shape[:2]), 1).variances
