"""How many directions a router really uses."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.cosines import Form, centred_rows, unit_rows
from analysis.measure import Chance, Values, measure
from analysis.nulls import central_band, random_rows

DRAWN_WORK = 2_000_000_000


@measure(
    title="Router spectrum",
    question="How many directions does the router use to tell experts apart?",
    unit="singular value (weight units, 0 or more)",
    family="router",
    source="Singular values of the router's rows; participation ratio: Gao & Ganguli 2015. As a router measure: ours",
    axes=("layer", "component"),
)
def router_spectrum(router_weight: Float[Tensor, "layer expert model"], *, form: Form = "centred") -> Values:
    """Singular values of the E x d matrix of router rows, largest first; `centred` takes the mean row away first.

    Facts, over layers: participation ratio (sum s^2)^2 / sum s^4, the number of directions in use (NaN if all rows
    are equal), and the condition number s_1 / s_last.

    Formula:
        s_1 >= s_2 >= ...: singular values of the matrix of rows r_e - mean_j r_j
        r_e: router row of expert e. raw: of the rows r_e themselves.

    Returns:
        Layer by component, 0 or more, in weight units; min(E, d) components, min(E - 1, d) if centred.

    Raises:
        Nothing of its own.

    Source:
        Gao & Ganguli 2015, Curr. Opin. Neurobiol. 32 (participation ratio).

    Caveat:
        A large first value in `raw` is most often the row that all experts share, which a softmax router ignores.
        Longer rows make all values larger: compare shapes, or read the participation ratio.
    """
    rows = router_weight.double()
    values = _spectrum(rows, form)
    energy = values.square()
    ratio = energy.sum(-1).square() / energy.square().sum(-1)
    facts = {
        "participation ratio, mean over layers": float(ratio.nanmean()),
        "participation ratio, least": float(ratio.min()),
        "condition number, geometric mean over layers": float((values[:, 0] / values[:, -1]).log().nanmean().exp()),
    }
    return Values(values, facts=facts)


@router_spectrum.chance
def null(router_weight: Float[Tensor, "layer expert model"], *, form: Form, generator: torch.Generator) -> Chance:
    """Singular values of unrelated directions with the lengths of these rows.

    Returns:
        Weight units: mean and central 95 % band per layer and component.

    Source:
        Ours: independent uniform directions, drawn.
    """
    layers, experts, model = router_weight.shape
    draws = min(200, max(60, DRAWN_WORK // (layers * experts**3)))
    # Which expert has which length cannot matter, so they are taken in order.
    lengths = router_weight.double().norm(dim=-1).sort(-1).values
    unit = unit_rows(random_rows(draws, experts, model, generator))
    drawn = torch.stack([_of_many(unit * length[:, None], form) for length in lengths], 1)
    how = f"{draws} draws of {experts} unrelated directions in {model} dimensions, with the lengths of the rows"
    return Chance(drawn.mean(0), *central_band(drawn), how)


def _spectrum(rows: Float[Tensor, "layer expert model"], form: Form) -> Float[Tensor, "layer component"]:
    if form == "raw":
        return torch.linalg.svdvals(rows)
    return torch.linalg.svdvals(centred_rows(rows))[:, : min(rows.shape[1] - 1, rows.shape[2])]


def _of_many(rows: Float[Tensor, "draw expert model"], form: Form) -> Float[Tensor, "draw component"]:
    """The same by way of inner products: many times faster, and good to 1e-8 of the largest, enough for a band."""
    rows = centred_rows(rows) if form == "centred" else rows
    squares = torch.linalg.eigvalsh(rows @ rows.mT).flip(-1)
    components = min(rows.shape[1] - (form == "centred"), rows.shape[2])
    return squares[:, :components].clamp(min=0).sqrt()
