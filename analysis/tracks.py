"""Where each expert's tokens and router row lie at every checkpoint of an ordered list, and one frame for all of it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.centroids import Centroid, centroids
from analysis.cosines import Form, centred_rows
from analysis.errors import NotComparable, TooFew
from analysis.measure import Inputs, Values
from analysis.projections.plane import Method, axis_labels, plane
from analysis.result import Axis
from analysis.statistic import State


def tracks_of(steps: tuple[Inputs, ...], centroid: Centroid) -> Float[Tensor, "step layer expert model"]:
    """Centroids of all experts at all checkpoints.

    Returns:
        In units of the hidden state; NaN for an expert without tokens.

    Raises:
        TooFew: With fewer than two checkpoints.
        NotComparable: If they differ in layers, experts or width.

    Source:
        Centroids: Ahrac et al. 2026, arXiv 2605.12476.
    """
    _comparable(steps)
    return torch.stack([centroids(side.centroid_sums, centroid) for side in steps])


def rows_of(steps: tuple[Inputs, ...], form: Form) -> Float[Tensor, "step layer expert model"]:
    """Router rows of all experts at all checkpoints; `centred` takes each checkpoint's mean row away.

    Returns:
        In weight units.

    Raises:
        TooFew: With fewer than two checkpoints.
        NotComparable: If they differ in layers, experts or width.

    Source:
        Ours: a softmax router ignores whatever all its rows share.
    """
    _comparable(steps)
    rows = torch.stack([side.router_weight.double() for side in steps])
    return centred_rows(rows) if form == "centred" else rows


def in_one_frame(
    tracks: Float[Tensor, "step layer expert model"],
    steps: tuple[Inputs, ...],
    method: Method,
    neighbours: int,
    seed: int,
) -> Values:
    """Two coordinates of every track, layer by layer, in one frame for all checkpoints of the layer together.

    A frame of each checkpoint's own would turn and hide what moves.

    Returns:
        Layer by step by expert by coordinate, in the unit of the tracks for PCA; NaN for a point with a NaN, and for a
        layer whose points are too few. Facts: the least trustworthiness, and for each layer its share of the variance.

    Raises:
        TooFew: If no layer has two different points (five for UMAP).

    Source:
        Ours; the planes: Pearson 1901, Torgerson 1952, McInnes et al. 2018, arXiv 1802.03426.
    """
    layers, caveats = steps[0].shape.layers, ()
    flat = torch.full((len(layers), len(steps), tracks.shape[2], 2), torch.nan, dtype=torch.float64)
    trusted: list[float] = []
    facts: dict[str, int | float | str] = {}
    for at, name in enumerate(layers):
        try:
            found, told = plane(tracks[:, at].flatten(0, 1), method, neighbours, seed)
        except TooFew as error:
            if at == len(layers) - 1 and not trusted:
                raise
            caveats += (f"NaN: layer {name}: {error}.",)
            continue
        flat[at] = found.unflatten(0, (len(steps), -1))
        trusted.append(float(told.get("trustworthiness", math.inf)))
        shares = [float(told[f"variance on {axis}"]) for axis in axis_labels(method) if f"variance on {axis}" in told]
        facts |= {f"variance shown, layer {name}": sum(shares)} if shares else {}
    if bool(flat.isnan().any()) and not caveats:
        caveats = ("NaN: an expert without a place at that checkpoint (no token, or no direction).",)
    length = tracks.diff(dim=0).norm(dim=-1).sum(0)
    facts = {"least trustworthiness": min(trusted), "mean path length": float(length.nanmean())} | facts
    when = tuple(side.label or str(n) for n, side in enumerate(steps))
    axes = (
        Axis("layer", layers),
        Axis("step", when),
        Axis("expert", tuple(f"E{e}" for e in range(tracks.shape[2]))),
        Axis("coordinate", axis_labels(method)),
    )
    return Values(flat, axes, caveats, facts)


def duration(steps: tuple[Inputs, ...]) -> float:
    """Training steps from the first to the last checkpoint by their labels, or checkpoints passed if those say nothing.

    Returns:
        Above 0.

    Source:
        Ours.
    """
    try:
        passed = abs(float(steps[-1].label) - float(steps[0].label))
    except ValueError:
        return float(len(steps) - 1)
    return passed if math.isfinite(passed) and passed > 0 else float(len(steps) - 1)


def resampled(
    centroid_sums: State, centroid: Centroid, generator: torch.Generator
) -> Float[Tensor, "layer expert model"]:
    """How far another sample of as many prompts could have put each centroid: half of what two random halves differ by.

    Returns:
        In units of the hidden state, 0 on average; NaN for an expert without tokens in one of the halves.

    Source:
        Ours: two halves differ by four times the variance of the whole.
    """
    blocks = torch.tensor(centroid_sums.blocks)
    order = blocks[torch.randperm(len(blocks), generator=generator)]
    first, second = (
        replace(centroid_sums, arrays={name: array[half] for name, array in centroid_sums.arrays.items()})
        for half in (order[: len(order) // 2], order[len(order) // 2 :])
    )
    return (centroids(first, centroid) - centroids(second, centroid)) / 2


def _comparable(steps: tuple[Inputs, ...]) -> None:
    if len(steps) < 2:
        raise TooFew(f"a track over {len(steps)} checkpoint(s); it needs two")
    sizes = {(side.shape.layers, side.shape.experts, side.shape.model) for side in steps}
    if len(sizes) > 1:
        raise NotComparable(f"checkpoints of different layers, experts or width have no common track: {sorted(sizes)}")
