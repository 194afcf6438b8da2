"""How alike experts are as weights, neuron by neuron."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from analysis import beside
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
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    matrix: Part = "all",
    minus_mean: bool = False,
) -> Values:
    """Cosine of two experts' matrices as long vectors: `gate`, `up`, `down`, or all three end to end.

    `minus_mean` takes the layer's mean expert away first: what is left of upcycled copies when what they inherited is
    gone. Independent differences from one parent then have -1/(E-1). A shared expert has the last row and is in no
    mean.

    Formula:
        C_ef = w_e . w_f / (|w_e| |w_f|);  w_e = all entries of W_gate, W_up, W_down of expert e as one vector
        minus_mean: w_e - mean_j w_j in its place, j a routed expert. gate, up, down: the entries of that matrix alone.

    Returns:
        Layer by expert by expert, -1 to 1; the diagonal is 1. NaN where an expert is zero, or equals the mean. Where a
        shared expert serves every token, E + 1 by E + 1, that one last, NaN if it has another number of neurons; means
        over pairs leave it out and have it as a fact.

    Raises:
        Nothing of its own.

    Source:
        Li et al. 2024, arXiv 2310.01334 (flattened weights).

    Caveat:
        Neurons are matched by their number: the same expert with its neurons reordered looks unrelated. Likeness of
        weights is neither needed nor enough for likeness of function; a high raw cosine may be a common parent.
    """
    slots = _slots(gate_weight, up_weight, down_weight, matrix)
    own = None if shared_up_weight is None else _slots(shared_gate_weight, shared_up_weight, shared_down_weight, matrix)
    alike = own if _same_width(slots, own) else None
    values = torch.stack(
        [_cosines(_of_layer(slots, n), _of_layer(alike, n), minus_mean) for n in range(len(up_weight))]
    )
    experts, caveats = slots[0][0].shape[0], ()
    if bool(values.isnan().any()):
        caveats = ("NaN: an expert is zero, or is the mean expert.",)
    if own is not None and alike is None:
        values = F.pad(values, (0, 1, 0, 1), value=torch.nan)
        caveats += ("NaN: the shared expert has another number of neurons than a routed one, so none of them match.",)
    pairs = off_diagonal(beside.parted(values, experts)[0])
    known = ~pairs.isnan()
    facts = {
        "mean over pairs": float(pairs.nanmean()),
        "rms over pairs": float(pairs.square().nanmean().sqrt()),
        "largest": float(pairs[known].max()) if bool(known.any()) else float("nan"),
        "pairs": int(known.sum()),
        "1 / root of the numbers compared": _size(slots) ** -0.5,
    } | beside.fact(values, experts)
    return Values(values, facts=facts, caveats=caveats)


@weight_similarity.chance
def null(
    gate_weight: Layered,
    up_weight: Layered,
    down_weight: Layered,
    shared_gate_weight: Layered | None,
    shared_up_weight: Layered | None,
    shared_down_weight: Layered | None,
    *,
    matrix: Part,
    minus_mean: bool,
    generator: torch.Generator,
) -> Chance:
    """Cosines of experts of independent normal weights, as many numbers long.

    Returns:
        Cosines: mean and central 95 % band for two different experts (sd about 1 over the root of their numbers), 1 on
        the diagonal; for pairs with a shared expert a band of their own.

    Source:
        Ours: independent normal vectors, drawn.
    """
    slots = _slots(gate_weight, up_weight, down_weight, matrix)
    experts, size, shared = slots[0][0].shape[0], _size(slots), int(shared_up_weight is not None)
    draws = max(1, 2 * PAIRS // (experts * (experts - 1)))
    rows = random_rows(draws, experts + shared, size, generator)
    if minus_mean:
        rows = rows - rows[:, :experts].mean(1, keepdim=True)
    routed, own, _ = beside.parted(row_cosines(rows, "raw"), experts)
    drawn = off_diagonal(routed).flatten()
    of_routed, of_shared = (
        torch.stack([each.mean(), *central_band(each)])[:, None, None]
        for each in (drawn, own.flatten() if shared else drawn)
    )
    last = torch.arange(experts + shared) == experts
    same, one = torch.eye(len(last), dtype=torch.bool), torch.ones((), dtype=torch.float64)
    mean, low, high = torch.where(same, one, torch.where(last | last[:, None], of_shared, of_routed))
    return Chance(mean, low, high, f"{len(drawn):,} pairs of {experts} random experts of {size:,} numbers")


def _slots(gate: Layered | None, up: Layered, down: Layered | None, matrix: Part) -> list[Layered]:
    parts = {"gate": gate, "up": up, "down": down}
    return [each for name, each in parts.items() if matrix in ("all", name) and each is not None]


def _same_width(slots: list[Layered], shared: list[Layered] | None) -> bool:
    return shared is not None and [slot[0].shape[1:] for slot in slots] == [slot[0].shape for slot in shared]


def _size(slots: list[Layered]) -> int:
    return sum(slot[0][0].numel() for slot in slots)


def _of_layer(slots: list[Layered] | None, layer: int) -> list[Tensor]:
    return [slot[layer] for slot in slots or ()]


def _cosines(matrices: list[Tensor], shared: list[Tensor], minus_mean: bool) -> Float[Tensor, "every every"]:
    """Summed over pieces of all experts' weights, so that no layer is held in a wider type at once."""
    experts, kind = len(matrices[0]), working_dtype(matrices[0][0])
    every = experts + bool(shared)
    inner, energy = torch.zeros(every, every).double(), torch.zeros(every).double()
    for at, matrix in enumerate(matrices):
        height = max(1, CHUNK // (experts * matrix.shape[-1]))
        for start in range(0, matrix.shape[1], height):
            piece = slice(start, start + height)
            parts = (matrix[:, piece], *(own[None, piece] for own in shared[at : at + 1]))
            rows = torch.cat([part.reshape(len(part), -1).to(kind) for part in parts])
            energy += rows.square().sum(-1)
            if minus_mean:
                rows = rows - rows[:experts].mean(0)
            inner += rows @ rows.mT
    # What rounding leaves of an expert that equals the mean has no direction.
    left = inner.diagonal()
    length = torch.where(left > (16 * torch.finfo(kind).eps) ** 2 * energy, left.sqrt(), torch.nan)
    return (inner / (length[:, None] * length)).clamp(-1, 1)
