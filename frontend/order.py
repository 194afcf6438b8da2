"""The order in which experts of the others stand beside those of A: their own numbers, or that of each one's match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from dash import html

from frontend.answer import Answer, Band
from frontend.controls import segments
from frontend.views import Side

SHOWN = {"show": "matched"}
"""How the measure that says which expert is which is asked for the matched pairs alone."""
ORDERS = (("own numbers", "number"), ("matched to A", "matched"))


def control(order: str) -> html.Div:
    """Two buttons that write the order into the address."""
    return segments("order beside A", "order", ORDERS, order, told="experts beside A")


def reorders(axes: tuple[str, ...]) -> bool:
    """Whether a figure of these axes has experts layer by layer, so that an order can be given them."""
    return axes[:1] == ("layer",) and any(name.startswith("expert") for name in axes)


def by_number(side: Side) -> Side:
    """A side whose experts stay where their own numbers put them, and that says so."""
    return replace(side, label=f"{side.label}, its own numbers")


def in_order(side: Side, matching: Answer) -> Side:
    """A side with its experts under the numbers of those of A that they match; blank where one of A has no match."""
    found = np.isfinite(matching.values)
    partner = np.where(found.any(-1), found.argmax(-1), -1)
    answer, labels = side.answer, matching.axes[1].labels
    axes = tuple(
        replace(axis, labels=tuple(f"match of {name}" for name in labels)) if axis.name.startswith("expert") else axis
        for axis in answer.axes
    )

    def moved(values: np.ndarray) -> np.ndarray:
        whole = np.broadcast_to(values, answer.values.shape)
        return np.stack([_layer(part, to, answer) for part, to in zip(whole, partner, strict=True)])

    def band(given: Band | None) -> Band | None:
        return given and given.moved(moved)

    told = f"{side.label}, {matching.facts.get('order of b', 'matched to a')}"
    parts = {"values": moved(answer.values), "null": band(answer.null), "interval": band(answer.interval)}
    return replace(side, label=told, answer=replace(answer, axes=axes, **parts))


def _layer(values: np.ndarray, partner: np.ndarray, answer: Answer) -> np.ndarray:
    """One layer's values; its axes are those of the answer but the first."""
    for place, axis in enumerate(answer.axes[1:]):
        if axis.name.startswith("expert"):
            values = values.take(partner.clip(0), place).astype(float)
            values[(slice(None),) * place + (partner < 0,)] = np.nan
    return values
