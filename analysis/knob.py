"""What a measure's own text declares: its knobs, by its signature, and the sections of its docstring."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from analysis.errors import BadDeclaration, BadKnob

PLAIN: dict[type, Literal["bool", "int", "float"]] = {bool: "bool", int: "int", float: "float"}
"""Annotations a knob may have besides `Literal`, and what the catalogue calls them."""


@dataclass(frozen=True)
class Knob:
    """One keyword of a measure that a person may turn; no knob ever runs a model again."""

    name: str
    kind: Literal["choice", "bool", "int", "float"]
    default: Any
    choices: tuple[Any, ...] = ()

    def check(self, value: Any) -> Any:
        """The value in the knob's own type; raises `BadKnob`."""
        wanted = {"bool": bool, "int": int, "float": float}.get(self.kind)
        if self.kind == "choice" and value in self.choices:
            return value
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if wanted and isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
            return value
        right = f"one of {list(self.choices)}" if self.kind == "choice" else f"a value of type {self.kind}"
        raise BadKnob(f"knob {self.name!r} is {value!r}; it takes {right}")


def signature(function: Callable) -> tuple[list[str], tuple[Knob, ...]]:
    """What a measure's function reads (positional names) and what may be turned (keyword-only arguments).

    Returns:
        Names and knobs, in the order of the function.

    Raises:
        BadDeclaration: If a knob is annotated as anything else than `Literal`, `bool`, `int` or `float`.

    Source:
        Ours: the signature is the declaration.
    """
    hints = typing.get_type_hints(function)
    inputs, knobs = [], []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not inspect.Parameter.KEYWORD_ONLY:
            inputs.append(p.name)
            continue
        hint = hints[p.name]
        if typing.get_origin(hint) is Literal:
            knobs.append(Knob(p.name, "choice", p.default, typing.get_args(hint)))
        elif hint in PLAIN:
            knobs.append(Knob(p.name, PLAIN[hint], p.default))
        else:
            raise BadDeclaration(
                f"{function.__name__}: knob {p.name!r} is annotated {hint}; use Literal, bool, int or float"
            )
    return inputs, tuple(knobs)


def docstring_section(function: Callable, title: str) -> str:
    """One section of a Google docstring as a single line.

    Returns:
        The section's text; empty if it is not there.

    Source:
        Ours: a figure's caveat is written once, where the formula is.
    """
    lines = (inspect.getdoc(function) or "").splitlines()
    try:
        start = next(i for i, line in enumerate(lines) if line.strip() == f"{title}:")
    except StopIteration:
        return ""
    body = []
    for line in lines[start + 1 :]:
        if line.strip() and not line.startswith(" "):
            break
        body.append(line.strip())
    return " ".join(body).strip()
