"""Whether the inputs of experts moved: the sides' rows exchanged, one block of prompts after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analysis.linalg import principal_axes
from analysis.manifolds.grassmann import geodesic, principal_angles
from analysis.matching import ALONE, Partners
from analysis.measure import Inputs
from analysis.nulls import beyond, beyond_chance
from analysis.slots import BLOCKS
from analysis.spec import EMPTY
from analysis.statistic import State
from analysis.subspaces import Cut, Weighting, cut, row_counts

FEWEST, _BASES, _NUMBERS = 19, 20_000, 4_000_000
"""Exchanges where they are dear; the subspaces that an answer may cost before they are; numbers held at a time."""

_SAMPLE = ("hash", "block", "weight", "input")


def apart(
    first: Float[Tensor, "layer expert n model"], second: Float[Tensor, "layer expert n model"]
) -> Float[Tensor, "layer expert"]:
    """Geodesic distance of each expert's subspace from its partner's.

    Returns:
        Radians, 0 to sqrt(n) pi/2; NaN where a side has none.

    Source:
        Angles: Bjorck & Golub 1973.
    """
    known = ~torch.stack([first, second]).flatten(3).isnan().any(-1).any(0)
    found = torch.full(known.shape, torch.nan, dtype=torch.float64)
    found[known] = geodesic(principal_angles(first[known], second[known]))
    return found


def moved(
    sides: tuple[Inputs, Inputs], pairs: Partners, n: int, weighting: Weighting, generator: torch.Generator
) -> tuple[dict[str, int | float | str], Float[Tensor, "layer 1"]]:
    """Whether experts lie farther from their partners than sides do that exchanged blocks of prompts.

    If b does to these prompts what a does, then which of the two a block's rows came from is a coin's toss, whatever
    the prompts share and however alike the tokens of a block are; sides that exchanged some blocks are as far apart. If
    experts moved, exchanged sides hold both places, and are nearer.

    Returns:
        Facts: layers whose mean over experts is beyond the largest of all layers by exchange, and the p of the largest.
        Then the p of each layer, corrected for all of them; NaN where there is nothing to exchange.

    Source:
        Fisher 1935, paired exchange; all ways to do so if they are few enough. Max-statistic over layers, each in
        standard deviations: Westfall & Young 1993.
    """
    size = cut(torch.cat([row_counts(side.routed_rows) for side in sides], -1), n, sides[0].shape.model, True)
    ways, means = _ways(sides[0].routed_rows, generator), []
    for layer, partner in enumerate(pairs):
        if bool((partner == ALONE).all()):
            means.append(torch.full((len(ways),), torch.nan, dtype=torch.float64))
            continue
        rows = _together(sides[0].routed_rows, sides[1].routed_rows, partner, layer, weighting)
        found = torch.cat([_distances(rows, size, part) for part in ways.split(_at_once(rows, size))])
        means.append(found.masked_fill(found.isnan().any(0), torch.nan).nanmean(-1))
    observed, *drawn = torch.stack(means, 1)
    none = torch.full_like(observed, torch.nan)
    by_layer = beyond_chance(observed, torch.stack(drawn)) if drawn else none
    found, p = beyond(by_layer)
    facts: dict[str, int | float | str] = {
        "layers that moved beyond exchange (max-statistic)": f"{found} of {len(pairs)}",
        "exchanges of blocks of prompts": len(drawn),
        "sign-flip p": p,
    }
    return facts, by_layer[:, None]


@dataclass(frozen=True)
class _Rows:
    """Rows of the experts of a layer and of their partners, lowest hash first: what goes into axes, and whose it is."""

    input: Float[Tensor, "expert row model"]
    weight: Float[Tensor, "expert row"]
    block: Int[Tensor, "expert row"]
    there: Bool[Tensor, "expert row"]
    of_b: Bool[Tensor, "expert row"]


def _together(a: State, b: State, partner: Int[Tensor, " expert"], layer: int, weighting: Weighting) -> _Rows:
    """What both sides keep: where the sample of one is full, the other has no rows beyond it either."""
    mine = {name: a[name][layer] for name in _SAMPLE}
    theirs = {name: b[name][layer][partner.clamp(min=0)] for name in _SAMPLE}
    theirs["hash"] = theirs["hash"].masked_fill((partner == ALONE)[:, None], EMPTY)
    last = torch.minimum(mine["hash"][:, -1:], theirs["hash"][:, -1:])
    both = {name: torch.cat([mine[name], theirs[name]], 1) for name in mine}
    hashes, order = both["hash"].masked_fill(both["hash"] > last, EMPTY).sort(dim=-1, stable=True)
    each, there = torch.arange(len(order))[:, None], hashes != EMPTY
    g = torch.where(there, both["weight"][each, order].double(), 0.0)
    x = torch.where(there[..., None], both["input"][each, order].double(), 0.0)
    x = x * g[..., None] if weighting == "scaled" else x
    weight = g if weighting == "weighted" else there.double()
    return _Rows(x, weight, both["block"][each, order], there, order >= mine["hash"].shape[-1])


def _distances(rows: _Rows, size: Cut, ways: Bool[Tensor, "way block"]) -> Float[Tensor, "way expert"]:
    """How far apart the sides are once these blocks have changed sides."""
    swapped = rows.of_b ^ ways[:, rows.block.clamp(min=0)]
    first, second = (_axes(rows, size, rows.there & side) for side in (~swapped, swapped))
    return apart(first, second)


def _axes(rows: _Rows, size: Cut, there: Bool[Tensor, "way expert row"]) -> Float[Tensor, "way expert n model"]:
    """Of as many rows as are compared, or of those there are; NaN for an expert whose rows do not span the axes."""
    order = (~there).byte().argsort(dim=-1, stable=True)[..., : size.rows]
    each = torch.arange(there.shape[1])[:, None]
    x, w = rows.input[each, order], rows.weight[each, order] * there.gather(-1, order)
    known = (w > 0).sum(-1) > size.axes
    w = torch.where(known[..., None], w, 1.0)
    if x.shape[-1] > x.shape[-2]:
        axes = principal_axes(x, w, size.axes).axes
    else:
        # Thousands of small problems: their covariances all at once.
        root = (w / w.sum(-1, keepdim=True)).sqrt()[..., None]
        centred = (x - (root**2 * x).sum(-2, keepdim=True)) * root
        variances, vectors = torch.linalg.eigh(centred.mT @ centred)
        flat = variances[..., -size.axes] <= variances[..., -1] * torch.finfo(torch.float64).eps * x.shape[-2]
        axes, known = vectors.mT.flip(-2)[..., : size.axes, :], known & ~flat
    return torch.where(known[..., None, None], axes, torch.nan)


def _at_once(rows: _Rows, size: Cut) -> int:
    """How many exchanges fit into bounded memory."""
    return max(1, _NUMBERS // (rows.input[:, : size.rows].numel() + 1))


def _ways(rows: State, generator: torch.Generator) -> Bool[Tensor, "way block"]:
    """Which blocks change sides, nobody first. The first stays: all others doing so is the same as its doing so."""
    others = rows.blocks[1:]
    every = torch.zeros(2 ** len(others), BLOCKS, dtype=torch.bool)
    for place, block in enumerate(others):
        every[:, block] = (torch.arange(len(every)) >> place) % 2 == 1
    cells = 2 * rows["hash"].shape[0] * rows["hash"].shape[1]
    order = torch.randperm(len(every) - 1, generator=generator)[: max(FEWEST, _BASES // cells)] + 1
    return every[torch.cat([torch.zeros(1, dtype=torch.int64), order])]
