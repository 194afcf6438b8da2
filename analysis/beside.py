"""The shared expert beside the routed ones: its row, and its column in a table of pairs, always the last.

Sums of it have an axis "beside" of size one, or of size nothing in a model without one, so that what is joined here is
joined alike in both and nobody asks which it is.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from analysis.expert import Expert
from analysis.slots import LayerBatch, Shape
from analysis.used import used

LABEL = "shared"
"""What a figure calls it, where a routed expert is E0, E1, ..."""


def members(batch: LayerBatch) -> list[Expert]:
    """The routed experts of a layer and, last, the shared one where there is one.

    Returns:
        E or E + 1 experts.

    Source:
        Ours.
    """
    assert batch.experts is not None
    shared = batch.shared if batch.shape.shared else None
    return [*batch.experts, *([] if shared is None else [shared])]


def count(shape: Shape) -> int:
    """How many rows a table of all experts has.

    Returns:
        E, or E + 1 with a shared expert.

    Source:
        Ours.
    """
    return shape.experts + min(shape.shared, 1)


def bordered(
    pairs: Shaped[Tensor, "*case expert expert"],
    shared: Shaped[Tensor, "*case beside expert"],
    own: Shaped[Tensor, "*case beside beside"],
) -> Shaped[Tensor, "*case every every"]:
    """A symmetric table of the routed experts with the shared one's row and column behind them.

    Args:
        pairs: Of the routed experts.
        shared: Of the shared one with each of them.
        own: Of the shared one with itself.

    Returns:
        E + 1 by E + 1, or `pairs` as they are where there is no shared expert.

    Source:
        Ours.
    """
    return torch.cat([torch.cat([pairs, shared.mT], -1), torch.cat([shared, own], -1)], -2)


def parted(
    table: Shaped[Tensor, "*case every every"], experts: int
) -> tuple[
    Shaped[Tensor, "*case expert expert"], Shaped[Tensor, "*case beside expert"], Shaped[Tensor, "*case beside beside"]
]:
    """What `bordered` was made of.

    Returns:
        Pairs of routed experts, the shared one with each of them, the shared one with itself.

    Source:
        Ours.
    """
    return table[..., :experts, :experts], table[..., experts:, :experts], table[..., experts:, experts:]


def labels(shape: Shape) -> tuple[str, ...]:
    """What all experts of a layer are called, in the order of their rows.

    Returns:
        E0, E1, ...; the last is "shared" where there is such an expert.

    Source:
        Ours.
    """
    return (*(f"E{e}" for e in range(shape.experts)), *([LABEL] if shape.shared else []))


def fact(table: Float[Tensor, "layer every every"], experts: int) -> dict[str, int | float | str]:
    """The mean over pairs of a routed expert and the shared one.

    Returns:
        One fact in the unit of the table, or none without a shared expert.

    Source:
        Ours: means over pairs of routed experts stay what they are in models without one.
    """
    shared = parted(table, experts)[1]
    return {"mean with the shared expert (last row)": float(shared.nanmean())} if shared.numel() else {}


def averages(rows: Float[Tensor, "layer every"], experts: int) -> dict[str, int | float | str]:
    """The mean over the routed experts that have a number, of how many it is, and the shared expert's mean over layers.

    Returns:
        Facts in the unit of the rows, and counts; the last fact is missing without a shared expert.

    Source:
        Ours: an expert without tokens is in no mean, nor is one that serves every token.
    """
    routed, shared = rows[:, :experts], rows[:, experts:]
    facts = {"mean over experts": float(routed.nanmean()), **used(routed, "experts")}
    return facts | ({"mean of the shared expert (last row)": float(shared.nanmean())} if shared.numel() else {})
