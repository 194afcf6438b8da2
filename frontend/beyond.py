"""Beyond chance only: what a corrected p does not put beyond it is dimmed, and the rest is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from dash import html

from frontend.controls import segments
from frontend.views import Side

LEVEL = 0.05
"""Of worlds without a difference, the share in which anything at all would be drawn in full."""
ON = "only"
NO_P = "no p by layer or cell comes with this measure, so nothing is dimmed"


def control(on: bool) -> html.Div:
    """Two buttons that write the filter into the address."""
    choices = (("all", "all"), ("beyond chance", ON))
    return segments("what is drawn in full", "beyond", choices, ON if on else "all", told="show")


def filtered(sides: Sequence[Side], elsewhere: str | None = None) -> tuple[tuple[Side, ...], str]:
    """The same sides, dimmed above the level, and how much of each is left; a side without p is left as it is.

    `elsewhere` is the title of the panel that has the p of what is drawn here side by side.
    """
    if not any(_has_p(side) for side in sides):
        told = _why(sides[0])
        return tuple(sides), f"{told[0].upper()}{told[1:]}." + (f" The p is in “{elsewhere}”." if elsewhere else "")
    told = "; ".join(_count(side, len(sides) > 1) for side in sides)
    rule = f"Dimmed: p above {LEVEL}, corrected for all of them."
    return tuple(replace(side, level=LEVEL) for side in sides), f"{told}. {rule}"


def _why(side: Side) -> str:
    """Why there is no p by layer or cell: in the answer's own words, where it says so in the place of its p."""
    told = str(side.answer.facts.get("permutation p", ""))
    if side.answer.null is None:
        return f"no p: {side.answer.null_reason}, so nothing is dimmed"
    return f"no p: {told.removeprefix('none: ')}" if told.startswith("none: ") else NO_P


def _has_p(side: Side) -> bool:
    return side.answer.null is not None and side.answer.null.p is not None


def _count(side: Side, several: bool) -> str:
    name = f"{side.title.split(' ')[0].removeprefix('<b>').removesuffix('</b>')}: " if several else ""
    null = side.answer.null
    if null is None or null.p is None:
        return f"{name}{_why(side)}"
    long = [axis.name for axis, size in zip(side.answer.axes, null.p.shape, strict=True) if size > 1]
    what = "cells" if len(long) > 1 else f"{(long or [side.answer.axes[0].name])[0].replace('_', ' ')}s"
    known = null.p[np.isfinite(null.p)]
    return f"{name}{int((known <= LEVEL).sum())} of {len(known)} {what} differ from chance"
