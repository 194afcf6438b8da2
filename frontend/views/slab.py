"""A layer's own table of cells, e.g. experts by categories: the layer chosen above, on the scale of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frontend.answer import Answer, Band
from frontend.figure import Figure
from frontend.scales import Scale
from frontend.views import heatmap
from frontend.views.side import Side


def draw(sides: Sequence[Side], scale: Scale, layer: int, span: int = 12) -> Figure:
    """The second and third axis as rows and columns; the title of each side says which layer it shows."""
    return heatmap.draw([_cut(side, layer) for side in sides], scale, layer, span)


def _cut(side: Side, layer: int) -> Side:
    answer = side.answer
    labels = answer.axes[0].labels
    at = labels.index(str(layer)) if str(layer) in labels else min(layer, len(labels) - 1)
    part = replace(
        answer,
        values=answer.values[at],
        axes=answer.axes[1:],
        null=_band(answer, answer.null, at),
        interval=_band(answer, answer.interval, at),
    )
    return replace(side, label=f"{side.label}, layer {labels[at]}", answer=part)


def _band(answer: Answer, band: Band | None, at: int) -> Band | None:
    return band and band.moved(lambda part: np.broadcast_to(part, answer.values.shape)[at])
