"""The activation matrix of the expert-router coupling loss."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.knob import Range
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band
from analysis.responses import DRAWS, chance_responses, squared_responses
from analysis.slots import Layered


@measure(
    title="Expert-router coupling",
    question="How strongly does each expert's gate answer to each router row?",
    unit="norm of the gate's pre-activation (0 or more)",
    family="coupling",
    source="ERC loss 2025, arXiv 2512.23447 (M without its noise, and eps)",
    axes=("layer", "expert", "expert_b"),
    slow=True,
)
def expert_router_coupling(
    router_weight: Float[Tensor, "layer expert model"], gate_weight: Layered, *, alpha: Annotated[float, Range(0)] = 1.0
) -> Values:
    """M_ij = |W_gate,j r_i|: router row i as a stand-in for its tokens, seen by expert j. No noise on the row.

    Facts, means over layers: `loss` = (1/E^2) sum over i != j of max(M_ij - alpha M_ii, 0) + max(M_ji - alpha M_ii, 0);
    `own row strongest` and `own expert strongest`: shares with M_ii the largest of its column and its row; `eps`:
    min over j != i of |r_i - r_j| / (2 |r_i|), the noise a row bears before it is nearer to another.

    Formula:
        M_ij = |W_gate,j r_i|
        r_i: router row i as stored, not scaled to length 1; W_gate,j: gate matrix of expert j; Euclidean norm.

    Returns:
        Layer by expert (router row) by expert (gate), 0 or more, in units of router weight times gate weight: 0 for a
        row or matrix of zeros. NaN where a weight is not finite. A row of zeros has no `eps`.

    Raises:
        BadKnob: If `alpha` is negative.

    Source:
        ERC loss 2025, arXiv 2512.23447, as summarised (formulas match a code port); alpha 1 was best for 64 experts.

    Caveat:
        Long router rows and large gates raise their whole row or column: for the direction alone read the
        router-to-gate response. Two equal rows have eps 0.
    """
    rows = router_weight.double()
    layers = [_coupling(r, gate_weight[layer]) for layer, r in enumerate(rows)]
    values, eps = torch.stack(layers), _room(rows)
    own, known = values.diagonal(dim1=-2, dim2=-1), values.nan_to_num(nan=-1)
    facts = {
        "loss": float(_loss(values, alpha).nanmean()),
        "own row strongest": float((known.amax(-2) == own)[~own.isnan()].double().mean()),
        "own expert strongest": float((known.amax(-1) == own)[~own.isnan()].double().mean()),
        "eps, mean": float(eps.nanmean()),
        "eps, least": float(eps.nan_to_num(nan=torch.inf).min()) if bool((~eps.isnan()).any()) else float("nan"),
    }
    return Values(values, facts=facts, caveats=_why(rows, values))


def _why(rows: Float[Tensor, "layer expert model"], values: Float[Tensor, "layer expert expert"]) -> tuple[str, ...]:
    """What is behind a NaN, and behind an eps that is left out."""
    broken = ~rows.isfinite().all(-1)
    # A gate's whole column is NaN, whatever the row.
    gates = values.isnan().all(-2) & ~broken.all(-1, keepdim=True)
    zero = int((rows == 0).all(-1).sum())
    found = {
        f"NaN: {int(broken.sum())} router row(s) hold a number that is not finite.": bool(broken.any()),
        f"NaN: {int(gates.sum())} gate matrices hold a number that is not finite.": bool(gates.any()),
        f"eps leaves out {zero} router row(s) of zeros: they have no size to measure it by.": zero > 0,
    }
    return tuple(text for text, true in found.items() if true)


@expert_router_coupling.chance
def null(
    router_weight: Float[Tensor, "layer expert model"],
    gate_weight: Layered,
    *,
    alpha: float,
    generator: torch.Generator,
) -> Chance:
    """The answer to random directions of the same length as the router row.

    Returns:
        Mean and central 95 % band per layer, row and expert.

    Source:
        Ours: uniform directions, drawn.
    """
    means, bands = [], []
    for layer, rows in enumerate(router_weight.double()):
        drawn = _finite(chance_responses(gate_weight[layer], DRAWS, generator).sqrt())
        length = _finite(rows.norm(dim=-1))[:, None]
        means.append(length * drawn.mean(0))
        bands.append(torch.stack([length * bound for bound in central_band(drawn)]))
    low, high = torch.stack(bands, 1)
    how = f"{DRAWS} random directions in {router_weight.shape[-1]} dimensions, as long as the row"
    return Chance(torch.stack(means), low, high, how)


def _coupling(
    rows: Float[Tensor, "expert model"], gates: Float[Tensor, "expert hidden model"]
) -> Float[Tensor, "expert expert"]:
    return _finite(squared_responses(rows, gates).sqrt())


def _finite(values: Float[Tensor, "*case"]) -> Float[Tensor, "*case"]:
    # One weight that is not finite makes every product with it NaN or infinite, even with 0.
    return torch.where(values.isfinite(), values, torch.nan)


def _room(rows: Float[Tensor, "layer expert model"]) -> Float[Tensor, "layer expert"]:
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    apart = torch.where(apart.isnan(), torch.inf, apart)
    apart.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return _finite(apart.amin(-1) / (2 * rows.norm(dim=-1)))


def _loss(values: Float[Tensor, "layer expert expert"], alpha: float) -> Float[Tensor, " layer"]:
    own = alpha * values.diagonal(dim1=-2, dim2=-1)[..., None]
    above = (values - own).clamp(min=0) + (values.mT - own).clamp(min=0)
    # The diagonal is no pair; for alpha below 1 it would be above itself.
    others = ~torch.eye(values.shape[-1], dtype=torch.bool)
    return (above * others).mean((-1, -2))
