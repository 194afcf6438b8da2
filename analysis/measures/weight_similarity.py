"""How alike experts are as weights, neuron by neuron."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import off_diagonal, row_cosines
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_rows
from analysis.precision import working_dtype
from analysis.slots import Layered

Part = Literal["all", "gate", "up", "down"]
PAIRS = 40_000
CHUNK = 2**24


@measure(
    title="Weight similarity",
    question="How alike are two experts as weights?",
    unit="cosine (-1 to 1)",
    family="function",
    source="Lo et al. 2024, arXiv 2406.18219, and Li et al. 2024, arXiv 2310.01334; minus the mean expert: ours",
    axes=("layer", "expert", "expert_b"),
    slow=True,
)
def weight_similarity(
    gate_weight: Layered, up_weight: Layered, down_weight: Layered, *, matrix: Part = "all", minus_mean: bool = False
) -> Values:
    """Cosine of two experts' matrices as long vectors: `gate`, `up`, `down`, or all three end to end.

    `minus_mean` takes the layer's mean expert away first: what is left of upcycled copies when what they inherited is
    gone. Independent differences from one parent then have -1/(E-1).

    Formula:
        C_ef = w_e . w_f / (|w_e| |w_f|);  w_e = all entries of W_gate, W_up, W_down of expert e as one vector
        minus_mean: w_e - mean_j w_j in its place. gate, up, down: the entries of that matrix alone.

    Returns:
        Layer by expert by expert, -1 to 1; the diagonal is 1. NaN where an expert is zero, or equals the mean.

    Raises:
        Nothing of its own.

    Source:
        Li et al. 2024, arXiv 2310.01334 (flattened weights).

    Caveat:
        Neurons are matched by their number: the same expert with its neurons reordered looks unrelated. Likeness of
        weights is neither needed nor enough for likeness of function; a high raw cosine may be a common parent.
    """
    slots = _slots(gate_weight, up_weight, down_weight, matrix)
    values = torch.stack([_cosines([slot[n] for slot in slots], minus_mean) for n in range(len(gate_weight))])
    pairs, known = off_diagonal(values), ~off_diagonal(values).isnan()
    facts = {
        "mean over pairs": float(pairs.nanmean()),
        "rms over pairs": float(pairs.square().nanmean().sqrt()),
        "largest": float(pairs[known].max()) if bool(known.any()) else float("nan"),
        "pairs": int(known.sum()),
        "1 / root of the numbers compared": _size(slots) ** -0.5,
    }
    caveats = ("NaN: an expert is zero, or is the mean expert.",) if bool(values.isnan().any()) else ()
    return Values(values, facts=facts, caveats=caveats)


@weight_similarity.chance
def null(
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    *,
    matrix: Part,
    minus_mean: bool,
    generator: torch.Generator,
) -> Chance:
    """Cosines of experts of independent normal weights, as many numbers long.

    Returns:
        Cosines: mean and central 95 % band for two different experts (sd about 1 over the root of their numbers), 1 on
        the diagonal.

    Source:
        Ours: independent normal vectors, drawn.
    """
    slots = _slots(gate_weight, up_weight, down_weight, matrix)
    experts, size = slots[0][0].shape[0], _size(slots)
    draws = max(1, 2 * PAIRS // (experts * (experts - 1)))
    rows = random_rows(draws, experts, size, generator)
    drawn = off_diagonal(row_cosines(rows, "centred" if minus_mean else "raw")).flatten()
    same, one = torch.eye(experts, dtype=torch.bool), torch.ones((), dtype=torch.float64)
    low, high = central_band(drawn)
    mean, low, high = (torch.where(same, one, value) for value in (drawn.mean(), low, high))
    return Chance(mean, low, high, f"{len(drawn):,} pairs of {experts} random experts of {size:,} numbers")


def _slots(gate: Layered, up: Layered, down: Layered, matrix: Part) -> list[Layered]:
    return [gate, up, down] if matrix == "all" else [{"gate": gate, "up": up, "down": down}[matrix]]


def _size(slots: list[Layered]) -> int:
    return sum(slot[0][0].numel() for slot in slots)


def _cosines(matrices: list[Tensor], minus_mean: bool) -> Float[Tensor, "expert expert"]:
    """Summed over pieces of all experts' weights, so that no layer is held in a wider type at once."""
    experts, kind = len(matrices[0]), working_dtype(matrices[0][0])
    inner, energy = torch.zeros(experts, experts).double(), torch.zeros(experts).double()
    for matrix in matrices:
        for piece in matrix.split(max(1, CHUNK // (experts * matrix.shape[-1])), dim=1):
            rows = piece.reshape(experts, -1).to(kind)
            energy += rows.square().sum(-1)
            if minus_mean:
                rows = rows - rows.mean(0)
            inner += rows @ rows.mT
    # What rounding leaves of an expert that equals the mean has no direction.
    left = inner.diagonal()
    length = torch.where(left > (16 * torch.finfo(kind).eps) ** 2 * energy, left.sqrt(), torch.nan)
    return (inner / (length[:, None] * length)).clamp(-1, 1)
