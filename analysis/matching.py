"""Which expert of one checkpoint is which of another: an assignment of the most alike, poor matches left out."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from analysis.alignment import same_layers
from analysis.errors import NotComparable
from analysis.evidence import Evidence, Likeness, likeness
from analysis.measure import Inputs
from analysis.nulls import beyond, beyond_chance
from analysis.unrelated import best

Matching = Literal["co-selection", "identity"]
"""How a difference pairs experts: by the tokens they take, which needs no weights, or by number, as within one run."""

ALONE = -1
"""The partner of an expert that has none."""

DRAWS = 999
"""Random pairings against which the pairs found are held."""

Partners = Int[Tensor, "layer expert"]


def assigned(found: Likeness) -> Partners:
    """For each expert of a its expert of b: as many pairs as there can be, of the largest sum of cosines.

    A pair whose cosine chance reaches stays unmatched, and so do those left over where one side has more experts.

    Returns:
        Numbers of experts of b, -1 for none; no number twice in a layer.

    Source:
        Kuhn 1955 (the assignment problem); scipy's implementation, Crouse 2016.
    """
    partner = torch.full(found.cosines.shape[:2], ALONE, dtype=torch.int64)
    for layer, (cosines, bound) in enumerate(zip(found.cosines, found.bound, strict=True)):
        rows, columns = best(cosines)
        good = cosines[rows, columns] > bound[rows, columns]  # NaN is not
        partner[layer, rows[good]] = columns[good]
    return partner


def partners(a: Inputs, b: Inputs, matching: Evidence | Literal["identity"]) -> Partners:
    """The partner in b of each expert of a.

    Args:
        a: What one checkpoint brings, for co-selection `token_routes` among it.
        b: The other.
        matching: By which evidence, or `identity`: the same number.

    Returns:
        Numbers of experts of b, -1 for none.

    Raises:
        NotComparable: If layers differ, or, for `identity`, the numbers of experts; and what the evidence refuses.

    Source:
        Ours.
    """
    if matching != "identity":
        return assigned(likeness(a, b, matching))
    same_layers(a, b)
    if a.shape.experts != b.shape.experts:
        raise NotComparable(
            f"a has {a.shape.experts} experts a layer, b has {b.shape.experts}: their numbers pair no experts; "
            "match them by co-selection"
        )
    return torch.arange(a.shape.experts).expand(len(a.shape.layers), -1)


def in_order(partner: Partners, of_b: Float[Tensor, "layer expert_b *rest"]) -> Float[Tensor, "layer expert *rest"]:
    """What b has for the partner of each expert of a.

    Returns:
        In the unit of what is given; NaN for an expert without partner.

    Source:
        Ours.
    """
    found = torch.stack([rows[to.clamp(min=0)] for rows, to in zip(of_b, partner, strict=True)])
    return torch.where((partner == ALONE).view(*partner.shape, *[1] * (found.ndim - 2)), torch.nan, found)


def renamed(
    partner: Int[Tensor, " expert"], chosen: Int[Tensor, "token k"], experts: int
) -> tuple[Int[Tensor, "token k"], int]:
    """The choices of b in one layer under the numbers of a.

    Args:
        partner: Of each expert of a in this layer.
        chosen: What b chose.
        experts: How many experts b has.

    Returns:
        Numbers of experts of a, or the number of its experts for one that is nobody's partner (identity experts too);
        and that number.

    Source:
        Ours.
    """
    nobody = len(partner)
    name = torch.full((experts + 1,), nobody, dtype=torch.int64)
    name[partner[partner != ALONE]] = (partner != ALONE).nonzero()[:, 0]
    return name[chosen.clamp(max=experts)], nobody


def told(partner: Partners, matching: str) -> dict[str, int | float | str]:
    """In which order the experts of b stand, as a fact.

    Returns:
        The order, and how many experts of a have a partner.

    Source:
        Ours: a comparison says how it pairs.
    """
    count = f"{int((partner != ALONE).sum())} of {partner.numel()} experts"
    return {"order of b": "its own numbers" if matching == "identity" else f"matched to a by {matching}, {count}"}


def why_alone(lost: Shaped[Tensor, "*case"], what: str = "experts of a have no partner in b") -> tuple[str, ...]:
    """The caveat that explains a NaN by a lack of partners.

    Returns:
        One line, or none if nothing is lost.

    Source:
        Ours.
    """
    missing = int(lost.sum())
    if not missing:
        return ()
    return (f"NaN: {missing} of {lost.numel()} {what}: no likeness beyond what chance reaches.",)


def random_pairs(
    cosines: Float[Tensor, "layer expert expert_b"], pairs: Partners, generator: torch.Generator
) -> tuple[dict[str, int | float | str], Float[Tensor, "layer 1"]]:
    """Whether the partners are more alike than experts paired at random, of those that have a partner.

    Returns:
        Facts: how many layers have a mean cosine above the largest of all layers by chance, and the p of the largest.
        Then the p of each layer, corrected for all of them.

    Source:
        Fisher 1935, random pairing; max-statistic over layers, each in standard deviations: Westfall & Young 1993.
    """
    observed, drawn = [], []
    for table, partner in zip(cosines, pairs, strict=True):
        rows = (partner != ALONE).nonzero()[:, 0]
        orders = torch.rand(DRAWS, len(rows), generator=generator).argsort(-1)
        observed.append(table[rows, partner[rows]].nanmean())
        drawn.append(table[rows, partner[rows][orders]].nanmean(-1))
    by_layer = beyond_chance(torch.stack(observed), torch.stack(drawn, 1))
    found, p = beyond(by_layer)
    facts: dict[str, int | float | str] = {
        "layers nearer than random pairs (max-statistic)": f"{found} of {len(by_layer)}",
        "permutation p": p,
    }
    return facts, by_layer[:, None]
