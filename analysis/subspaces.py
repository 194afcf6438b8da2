"""From the sampled inputs of experts to their principal subspaces, and how far apart chance and sampling put them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analysis.knob import Range
from analysis.linalg import Principal, principal_axes
from analysis.manifolds.grassmann import cross_angles
from analysis.spec import EMPTY
from analysis.statistic import State

Weighting = Literal["scaled", "weighted", "plain"]
"""`scaled`: rows g x, as published; `weighted`: rows x counted g times; `plain`: rows x as they are."""

Reading = Literal["scaled", "weighted", "plain", "zeros"]
"""`zeros`: rows g x of all tokens, 0 for those that the expert did not serve, the other reading of what is published.

If e served a share p of all tokens, the covariance of these is p (C + (1 - p) m m'), C and m covariance and mean of g x
over the tokens that it served: one row of 0 beside them, counted as often as there are others.
"""

AxisCount = Annotated[int, Range(1)]

GAP = 1.05
"""Below this ratio of the n-th to the next variance the n axes are not the n axes of anything."""

_PER_AXIS, _PER_AXIS_OF_HALF = 4, 2


@dataclass(frozen=True)
class Cut:
    """How many axes are compared, from how many rows of each expert, and with how few rows an expert has none."""

    axes: int
    rows: int
    least: int


def row_counts(routed_rows: State, blocks: tuple[int, ...] | None = None) -> Int[Tensor, "layer expert"]:
    """Rows sampled of each expert, of these blocks of prompts or of all.

    Returns:
        0 to the size of the sample.

    Source:
        Ours.
    """
    return _present(routed_rows, blocks).sum(-1)


def cut(counts: Int[Tensor, "*case expert"], n: int, model: int, matched: bool, per_axis: int = _PER_AXIS) -> Cut:
    """The sizes at which experts are compared.

    Matched: all experts give as many rows as the smallest has that has enough: 4 an axis, or as many as the median
    expert where that is less. The others are left out. At most half of the model's dimensions can be compared, since
    larger subspaces must meet.

    Args:
        counts: Rows sampled of each expert.
        n: Axes asked for.
        model: Dimensions of the space.
        matched: Whether all experts give the same number of rows.
        per_axis: Rows an axis that are enough.

    Returns:
        Axes, rows and the least number of rows.

    Source:
        Ours: fewer rows alone lower an effective rank and raise every distance.
    """
    axes = max(1, min(n, model // 2))
    if not matched or not counts.numel():
        return Cut(axes, int(counts.max()) if counts.numel() else 0, axes + 1)
    enough = max(axes + 1, min(per_axis * axes, int(counts.median())))
    rows = counts[counts >= enough]
    smallest = int(rows.min()) if len(rows) else enough
    return Cut(axes, smallest, smallest)


def principal(
    routed_rows: State, cut: Cut, weighting: Reading, blocks: tuple[int, ...] | None = None
) -> Iterator[Principal]:
    """Principal axes and variances of every expert, layer by layer; the rows of lowest hash are used.

    Returns:
        One batch over experts per layer, NaN (rank 0) for an expert with too few rows.

    Source:
        Liu 2026, arXiv 2605.16349 (scaled, or zeros); weighted: the standard form; the sample is ours.
    """
    zeros = zeros_per_row(routed_rows, blocks) if weighting == "zeros" else None
    for layer, present in enumerate(_present(routed_rows, blocks)):
        order = (~present).byte().argsort(dim=-1, stable=True)[:, : cut.rows]
        there, known = present.gather(-1, order), present.sum(-1) >= cut.least
        each = torch.arange(len(order))[:, None]
        rows = torch.where(there[..., None], routed_rows["input"][layer][each, order].double(), 0.0)
        g = torch.where(there, routed_rows["weight"][layer].gather(-1, order).double(), 0.0)
        rows = rows * g[..., None] if weighting in ("scaled", "zeros") else rows
        count = g if weighting == "weighted" else there.double()
        if zeros is not None:
            rows, count = beside_zeros(rows, count, zeros[layer])
        found = principal_axes(rows[known], count[known], cut.axes)
        yield _spread(found, known, cut, rows.shape[-1])


def zeros_per_row(routed_rows: State, blocks: tuple[int, ...] | None = None) -> Float[Tensor, "layer expert"]:
    """For each token that an expert served, how many it did not, of these blocks of prompts or of all.

    Returns:
        (T - n_e) / n_e: 0 for an expert of all tokens, as a shared one is; the tokens, for an expert of none.

    Source:
        Ours.
    """
    if "served" not in routed_rows.arrays:  # what `shared_rows` made
        return torch.zeros(routed_rows["hash"].shape[:2], dtype=torch.float64)
    which = slice(None) if blocks is None else list(blocks)
    served, seen = (routed_rows[name][which].sum(0).double() for name in ("served", "seen"))
    return (seen[:, None] - served) / served.clamp(min=1)


def beside_zeros(
    rows: Float[Tensor, "*case row model"], count: Float[Tensor, "*case row"], zeros: Float[Tensor, "*case"]
) -> tuple[Float[Tensor, "*case more model"], Float[Tensor, "*case more"]]:
    """Rows with one of 0 behind them, counted `zeros` times for each of theirs.

    Returns:
        Rows and how often each counts.

    Source:
        Ours: equal rows are one row that counts as often.
    """
    rows = torch.cat([rows, torch.zeros_like(rows[..., :1, :])], -2)
    return rows, torch.cat([count, (count.sum(-1) * zeros)[..., None]], -1)


def bases(
    routed_rows: State, cut: Cut, weighting: Reading, blocks: tuple[int, ...] | None = None
) -> Float[Tensor, "layer expert n model"]:
    """The leading principal axes of every expert.

    Returns:
        Orthonormal rows; NaN where an expert has too few rows, or rows that span fewer directions.

    Source:
        Liu 2026, arXiv 2605.16349.
    """
    return torch.stack([found.axes for found in principal(routed_rows, cut, weighting, blocks)])


def shared_rows(common_rows: State) -> State | None:
    """The sample of all tokens as that of one expert, which served all of them with the weights kept there.

    Returns:
        A state in the form of `routed_rows`, of views; None in a model without a shared expert.

    Source:
        Ours: a shared expert is one more routed expert, of all tokens.
    """
    shape = common_rows.shape
    if not shape.shared:
        return None
    arrays = {name: array.unsqueeze(1) for name, array in common_rows.arrays.items()}
    return replace(common_rows, statistic="routed_rows", shape=replace(shape, experts=1), arrays=arrays)


def bases_beside(
    routed_rows: State, shared: State | None, cut: Cut, weighting: Reading, blocks: tuple[int, ...] | None = None
) -> Float[Tensor, "layer every n model"]:
    """The leading principal axes of every expert and, last, of what `shared_rows` gave, from as many rows.

    Returns:
        As `bases`, E + 1 experts with a shared one.

    Source:
        Ours.
    """
    both = [rows for rows in (routed_rows, shared) if rows is not None]
    return torch.cat([bases(rows, cut, weighting, blocks) for rows in both], 1)


def outputs_of(expert_rows: State, layer: int) -> Float[Tensor, "every row model"]:
    """What the experts of a layer, a shared one last, gave for the sampled tokens.

    Returns:
        Rows of E or E + 1 experts, in units of the expert output; NaN in empty places.

    Source:
        Ours.
    """
    routed = expert_rows["output"][layer].double().transpose(0, 1)
    shared = expert_rows["shared"][layer].double()[None] if expert_rows.shape.shared else routed[:0]
    return torch.cat([routed, shared])


def halves(routed_rows: State) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks of prompts in two halves, even and odd.

    Returns:
        Two sets of blocks that share no prompt; none moves to the other half when another block is left out.

    Source:
        Ours.
    """
    even, odd = (tuple(block for block in routed_rows.blocks if block % 2 == half) for half in (0, 1))
    return even, odd


@dataclass(frozen=True)
class Split:
    """Distances between what two halves of the prompts show: of each expert with itself, of each with each other.

    Both are from the same number of rows of different prompts, so they can be compared.
    """

    within: Float[Tensor, "layer expert"]
    between: Float[Tensor, "layer expert expert"]
    rows: int


def split_half(
    routed_rows: State,
    n: int,
    weighting: Reading,
    distance: Callable[[Tensor], Tensor],
    matched: bool = True,
    shared: State | None = None,
) -> Split:
    """How far sampling alone puts an expert from itself, and how far apart experts are at as many rows.

    Returns:
        In the unit of `distance`, which is a function of principal angles; what `shared_rows` gave is last.

    Source:
        Ours: a distance means nothing below what two halves of one expert's tokens show.
    """
    parts = halves(routed_rows)
    counts = torch.stack([row_counts(routed_rows, part) for part in parts])
    # Half of the prompts, half of the bar: an expert that has a distance is to have a floor too.
    size = cut(counts, n, routed_rows.shape.model, matched, _PER_AXIS_OF_HALF)
    first, second = (bases_beside(routed_rows, shared, size, weighting, part) for part in parts)
    across = torch.stack([distance(cross_angles(a, b)) for a, b in zip(first, second, strict=True)])
    return Split(across.diagonal(dim1=-2, dim2=-1), (across + across.mT) / 2, size.rows)


def why_nan(known: Bool[Tensor, "*case expert"], cut: Cut) -> tuple[str, ...]:
    """The caveat that explains NaN experts.

    Returns:
        One line, or none if all are known.

    Source:
        Ours.
    """
    if bool(known.all()):
        return ()
    return (
        f"NaN: {int((~known).sum())} of {known.numel()} experts have fewer than {cut.least} sampled rows, or rows that "
        f"span fewer than {cut.axes} directions.",
    )


def said(cut: Cut, n: int, matched: bool) -> tuple[str, ...]:
    """What to know of the sizes.

    Returns:
        A line where fewer axes are compared than asked for, and one where experts differ in rows.

    Source:
        Ours.
    """
    caveats = ()
    if cut.axes < n:
        caveats += (f"Only {cut.axes} of {n} axes are compared: larger subspaces of so few dimensions must meet.",)
    if not matched:
        caveats += ("Experts differ in their number of rows, and fewer rows alone look more different.",)
    return caveats


def _present(routed_rows: State, blocks: tuple[int, ...] | None) -> Bool[Tensor, "layer expert row"]:
    there = routed_rows["hash"] != EMPTY
    if blocks is None:
        return there
    return there & torch.isin(routed_rows["block"], torch.tensor(blocks, dtype=torch.int64))


def _spread(found: Principal, known: Bool[Tensor, " expert"], cut: Cut, model: int) -> Principal:
    axes = torch.full((len(known), cut.axes, model), torch.nan, dtype=torch.float64)
    variances = torch.full((len(known), found.variances.shape[-1]), torch.nan, dtype=torch.float64)
    rank = torch.zeros(len(known), dtype=torch.int64)
    axes[known, : found.axes.shape[-2]], variances[known], rank[known] = found.axes, found.variances, found.rank
    return Principal(axes, variances, rank)
