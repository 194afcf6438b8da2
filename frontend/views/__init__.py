"""Answers to figures, pure. The axes of an answer choose its view; nothing here knows a measure's name."""

from __future__ import annotations

from collections.abc import Sequence

from frontend.answer import Answer
from frontend.clock import Clock, from_labels
from frontend.figure import Figure
from frontend.scales import Scale, scale_of
from frontend.views import (
    course,
    heatmap,
    line,
    matrix,
    mosaic,
    number,
    runs,
    scatter,
    series,
    slab,
    states,
    table,
    tracks,
)
from frontend.views.aligned import aligned
from frontend.views.side import Side

__all__ = ["Side", "draw", "draw_runs", "draw_series", "kind_of"]

OF_STEPS = {("layer", "step", "expert", "coordinate"): "tracks", ("step", "layer", "expert"): "states"}
"""Views of an answer over steps that have more axes than lines do."""


def kind_of(answer: Answer) -> str:
    """Which view suits the answer's axes."""
    names, shape = [a.name for a in answer.axes], answer.values.shape
    if not shape:
        return "number"
    if tuple(names) in OF_STEPS:
        return OF_STEPS[tuple(names)]
    if names[0] == "step" and len(shape) <= 2:
        return "course"
    if len(shape) == 1:
        return "line"
    if len(shape) == 3:
        return "mosaic" if names[2] == f"{names[1]}_b" else "slab" if names[0] == "layer" else "table"
    if len(shape) == 2 and names[1] == "coordinate":
        return "scatter"
    if len(shape) == 2 and names[1] == f"{names[0]}_b":
        return "matrix"
    if len(shape) == 2 and shape[1] <= 6 and names[0] != "prompt" and not names[1].startswith(("expert", "prompt")):
        return "line"
    if len(shape) == 2:
        return "heatmap"
    return "table"


def draw(
    sides: Sequence[Side], layer: int = 0, difference: bool = False, span: int = 12, clock: Clock | None = None
) -> tuple[Figure, Scale | None]:
    """The figure of an answer and what stands beside it (step 0, the other checkpoint), and its colour scale if any.

    `span` is how many of the page's twelve columns it gets: numbers stand in cells only where there is room for them.
    `clock` tells an axis of steps; without one the answer's own labels do.
    """
    kind = kind_of(sides[0].answer)
    if kind in ("course", *OF_STEPS.values()):
        return _over_steps(kind, sides, layer, span, clock), None
    if kind == "number":
        return number.draw(sides), None
    if kind == "line":
        return line.draw(aligned(sides), layer), None
    if kind == "scatter":
        return scatter.draw(sides), None
    if kind == "table":
        return table.draw(sides), None
    scale = scale_of([s.answer for s in sides], difference, _beside_a(sides))
    sides = sides if kind == "matrix" else aligned(sides)
    if kind in ("slab", "heatmap"):
        return {"slab": slab.draw, "heatmap": heatmap.draw}[kind](sides, scale, layer, span), scale
    return {"mosaic": mosaic.draw, "matrix": matrix.draw}[kind](sides, scale, layer), scale


def _beside_a(sides: Sequence[Side]) -> str:
    """What the far end of a scale of differences is called: the one that A is taken from, or the others."""
    return "other" if len(sides) > 1 else "B" if sides[0].role == "ab" else sides[0].role.upper()


def _over_steps(kind: str, sides: Sequence[Side], layer: int, span: int, clock: Clock | None) -> Figure:
    axis = next(a for a in sides[0].answer.axes if a.name == "step")
    told = clock.of(axis) if clock else from_labels(axis.labels)
    if kind == "course":
        return course.draw(sides, told)
    return {"tracks": tracks.draw, "states": states.draw}[kind](sides, layer, told, span)


def draw_runs(sides: Sequence[Side]) -> Figure:
    """Every run's per-layer values in one dot plot, with the floor and step 0."""
    return runs.draw(sides)


def draw_series(sides: Sequence[Side], layer: int, clock: Clock, span: int) -> Figure:
    """One answer a step, as small multiples by layer."""
    return series.draw(sides, layer, clock, span)
