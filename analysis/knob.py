"""What a measure's own text declares: its knobs, by its signature, and the sections of its docstring."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from analysis.errors import BadDeclaration, BadKnob

PLAIN: dict[type, Literal["bool", "int", "float"]] = {bool: "bool", int: "int", float: "float"}
"""Annotations a knob may have besides `Literal`, and what the catalogue calls them."""

MOST = 10**9
"""More than any knob can mean; what lies far beyond would overflow a number on its way through the measure."""


@dataclass(frozen=True)
class Range:
    """The numbers a knob takes, written into its annotation: `n: Annotated[int, Range(1)] = 10`."""

    low: int | float
    high: int | float = MOST
    ends: bool = True
    """Whether `low` and `high` themselves are taken."""

    def holds(self, value: int | float) -> bool:
        """False for NaN too."""
        return self.low <= value <= self.high and (self.ends or value not in (self.low, self.high))

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}" if self.ends else f"above {self.low:,} and below {self.high:,}"


Seed = Annotated[int, Range(0, 2**32 - 1)]
"""What every generator takes: scikit-learn's and UMAP's have 32 bits."""


@dataclass(frozen=True)
class Knob:
    """One keyword of a measure that a person may turn; no knob ever runs a model again."""

    name: str
    kind: Literal["choice", "bool", "int", "float"]
    default: Any
    choices: tuple[Any, ...] = ()
    range: Range | None = None

    def check(self, value: Any) -> Any:
        """The value in the knob's own type; raises `BadKnob`."""
        if self.kind == "choice" and value in self.choices:
            return value
        if self.kind == "bool" and isinstance(value, bool):
            return value
        if self.kind in ("int", "float") and self._takes(value):
            return float(value) if self.kind == "float" else value
        raise BadKnob(f"knob {self.name!r} is {value!r}; it takes {self._right}")

    def _takes(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int" else int | float):
            return False
        # A whole number may be too large for a float, and is no NaN.
        finite = isinstance(value, int) or math.isfinite(value)
        return finite and (self.range or Range(-MOST)).holds(value)

    @property
    def _right(self) -> str:
        if self.kind == "choice":
            return f"one of {list(self.choices)}"
        if self.kind == "bool":
            return "a value of type bool"
        return f"{'a whole number' if self.kind == 'int' else 'a number'}, {self.range or Range(-MOST)}"


def signature(function: Callable) -> tuple[list[str], tuple[Knob, ...]]:
    """What a measure's function reads (positional names) and what may be turned (keyword-only arguments).

    Returns:
        Names and knobs, in the order of the function.

    Raises:
        BadDeclaration: If a knob is annotated as anything else than `Literal`, `bool`, `int` or `float`.

    Source:
        Ours: the signature is the declaration.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    inputs, knobs = [], []
    for p in inspect.signature(function).parameters.values():
        if p.kind is not inspect.Parameter.KEYWORD_ONLY:
            inputs.append(p.name)
            continue
        hint, ranged = _parted(hints[p.name])
        if typing.get_origin(hint) is Literal:
            knobs.append(Knob(p.name, "choice", p.default, typing.get_args(hint)))
        elif hint in PLAIN:
            knobs.append(Knob(p.name, PLAIN[hint], p.default, (), ranged))
        else:
            raise BadDeclaration(
                f"{function.__name__}: knob {p.name!r} is annotated {hint}; use Literal, bool, int or float"
            )
    return inputs, tuple(knobs)


def _parted(hint: Any) -> tuple[Any, Range | None]:
    """A knob's annotation without and with what `Annotated` says beside it."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    plain, *said = typing.get_args(hint)
    return plain, next((each for each in said if isinstance(each, Range)), None)


def check_named(
    measure: str,
    knobs: tuple[Knob, ...],
    slow_if: Mapping[str, Any],
    no_interval_if: Mapping[str, Mapping[Any, str]],
    start_if: Mapping[str, Any],
) -> None:
    """That what a measure says of its knobs is said of knobs, and of choices, that it has.

    Returns:
        Nothing, if it is.

    Raises:
        BadDeclaration: With what is unknown, and the knobs there are.

    Source:
        Ours: a word mistyped in a declaration would be silent for ever.
    """
    known = {knob.name: knob for knob in knobs}
    named = (("slow_if", set(slow_if)), ("no_interval_if", set(no_interval_if)), ("start_if", set(start_if)))
    for said, names in named:
        if unknown := names - set(known):
            raise BadDeclaration(f"measure {measure!r}: {said} names {sorted(unknown)}; its knobs: {list(known)}")
    for knob, reasons in no_interval_if.items():
        if unknown := set(reasons) - set(known[knob].choices or reasons):
            raise BadDeclaration(f"measure {measure!r}: no_interval_if has {sorted(unknown)}, no choice of {knob!r}")


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
