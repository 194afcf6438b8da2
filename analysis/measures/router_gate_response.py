"""Whether an expert's own router row excites it more than the rows of others do."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import Form, centred_rows, unit_rows
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.responses import (
    DRAWS,
    NO_SIZE,
    Matrix,
    chance_responses,
    squared_responses,
    squared_sizes,
    toward_model,
)
from analysis.slots import Layered


@measure(
    title="Router-to-gate response",
    question="Does each expert answer most to its own router row?",
    unit="response over that of a random direction (0 to d; 1 is chance)",
    family="coupling",
    source="Ours (K2), beside the coupling of Ahrac, Hochwald & Geva 2026, arXiv 2605.12476",
    axes=("layer", "expert", "expert_b"),
    slow=True,
)
def router_gate_response(
    router_weight: Float[Tensor, "layer expert model"],
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    *,
    matrix: Matrix = "gate",
    form: Form = "raw",
) -> Values:
    """K2_ij = d |W_j r_i / |r_i||^2 / |W_j|_F^2: how strongly expert j answers to the direction of router row i.

    `matrix` is W_gate, W_up, or W_down read backwards (|W_down' r|; expected to show nothing: a control). `centred`
    takes the layer's mean router row away first.

    Facts over all layers: mean diagonal, mean off the diagonal, and self-recognition: the share of rows i that excite
    expert i most of all, and of experts j that row j excites most; chance is 1/E.

    Formula:
        K2_ij = d |W_j r_i|^2 / (|r_i|^2 |W_j|_F^2)
        r_i: router row i of d numbers (centred: minus the layer's mean row); W_j: gate matrix of expert j.
        up, down: that matrix, or the transpose of that one, in its place.

    Returns:
        Layer by expert (router row) by expert (matrix), 0 to d; 1 is the mean over all directions. NaN for a zero row
        or matrix.

    Raises:
        Nothing of its own.

    Source:
        Ours: the mean over uniform directions is 1 for any matrix.

    Caveat:
        A direction that all experts like (a large shared input direction) raises whole rows of it: compare the
        diagonal with the rest. It reads weights alone; whether tokens lie along those directions it does not say.
    """
    slot = {"gate": gate_weight, "up": up_weight, "down": down_weight}[matrix]
    layers = []
    for layer, rows in enumerate(_directions(router_weight, form)):
        matrices = toward_model(slot[layer], matrix)
        layers.append(rows.shape[-1] * squared_responses(rows, matrices) / squared_sizes(matrices))
    values = torch.stack(layers)
    caveats = (NO_SIZE,) if bool(values.isnan().any()) else ()
    return Values(values, facts=_recognition(values), caveats=caveats)


@router_gate_response.chance
def null(
    router_weight: Float[Tensor, "layer expert model"],
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    *,
    matrix: Matrix,
    form: Form,
    generator: torch.Generator,
) -> Chance:
    """The response of each expert to random directions.

    Returns:
        1, and the central 95 % band per layer and expert (the same for every router row).

    Source:
        Ours: the mean over uniform directions is exact, the band is drawn.
    """
    slot = {"gate": gate_weight, "up": up_weight, "down": down_weight}[matrix]
    bands = []
    for layer in range(len(router_weight)):
        matrices = toward_model(slot[layer], matrix)
        drawn = matrices.shape[-1] * chance_responses(matrices, DRAWS, generator) / squared_sizes(matrices)
        bands.append(torch.stack(central_band(drawn)))
    low, high = torch.stack(bands, 1)[:, :, None]
    return Chance(torch.ones_like(low), low, high, f"{DRAWS} random directions in {router_weight.shape[-1]} dimensions")


def _directions(router_weight: Float[Tensor, "layer expert model"], form: Form) -> Float[Tensor, "layer expert model"]:
    rows = router_weight.double()
    return unit_rows(centred_rows(rows) if form == "centred" else rows)


def _recognition(values: Float[Tensor, "layer expert expert"]) -> dict[str, int | float | str]:
    experts = values.shape[-1]
    own = torch.eye(experts, dtype=torch.bool).expand_as(values)
    # A row with NaN in it recognises nobody and is not asked.
    filled, names = values.nan_to_num(nan=-1), torch.arange(experts)
    rows, columns = ((~values.isnan()).any(axis) for axis in (-1, -2))
    return {
        "mean diagonal": float(values[own].nanmean()),
        "mean off the diagonal": float(values[~own].nanmean()),
        "pairs": int((~values[~own].isnan()).sum()),
        "self-recognition of rows": float((filled.argmax(-1) == names)[rows].double().mean()),
        "self-recognition of experts": float((filled.argmax(-2) == names)[columns].double().mean()),
        "chance of self-recognition": 1 / experts,
    }
