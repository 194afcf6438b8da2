"""The clock of a run: its stored steps in order, told as optimiser steps or as the tokens it had seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend import words
from frontend.answer import Axis
from frontend.state import Material, PageState

AXIS = "run.axis"
"""The knob of the page that says how the axis is told."""


@dataclass(frozen=True)
class Clock:
    """`steps` name the stored steps in order, as the URL does; `told` is what an axis says of each."""

    steps: tuple[str, ...]
    told: tuple[str, ...]
    title: str

    @property
    def last(self) -> int:
        """The position of the last step."""
        return len(self.steps) - 1

    def words(self, at: int) -> str:
        """One step in a sentence or on hover."""
        return f"step {self.told[at]}" if self.title == "training step" else f"{self.told[at]} tokens"

    def of(self, axis: Axis) -> Clock:
        """This clock where it has as many steps as the axis, else the axis by its own labels."""
        if len(axis.labels) == len(self.steps):
            return self
        return from_labels(axis.labels)


def from_labels(labels: Sequence[str]) -> Clock:
    """The clock that an answer's own axis of steps tells."""
    told = tuple(f"{int(label):,}" if label.isdigit() else label for label in labels)
    return Clock(tuple(labels), told, "training step")


def clock_of(material: Material, state: PageState) -> Clock | None:
    """The clock of A's run as the page asks for it; None where A has no run to follow."""
    members = material.steps_of(state.a)
    if len(members) < 2:
        return None
    names = tuple(_name(c) for c in members)
    if state.knobs.get(AXIS) == "tokens" and not why_no_tokens(members):
        return Clock(names, tuple(words.count(c["tokens"]) for c in members), "training tokens")
    return Clock(names, tuple(_told(c) for c in members), "training step")


def why_no_tokens(members: Sequence[Mapping[str, Any]]) -> str:
    """Why the axis cannot be told in tokens; empty where it can."""
    silent = [c for c in members if c.get("tokens") is None]
    if not silent:
        return ""
    where = "neither their names nor the run's own files say it"
    return f"{len(silent)} of {len(members)} steps do not say how many tokens they had seen: {where}"


def _name(c: Mapping[str, Any]) -> str:
    if c.get("step") is None:
        return str(c["id"]).rsplit("/", 1)[-1]
    return f"{c['stage']}-{c['step']}" if c.get("stage") else str(c["step"])


def _told(c: Mapping[str, Any]) -> str:
    if c.get("step") is None:
        return _name(c)
    return f"{c['stage']} {c['step']:,}" if c.get("stage") else f"{c['step']:,}"
