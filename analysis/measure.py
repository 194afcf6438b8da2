"""A measure: a pure function from merged statistics and weights to values with named axes.

    @measure(title="Expert load", question="...", unit="...", family="routing", source="...", axes=("layer", "expert"))
    def expert_load(prompt_counts, *, relative: bool = True): ...

    @expert_load.chance
    def null(prompt_counts, *, relative, generator): ...

Positional names are statistics or weight slots; keyword-only arguments are knobs (annotated `Literal`, `bool`, `int`
or `float`, with a default). A measure of two checkpoints names its sides `a` and `b`, one of an ordered list of them
takes `steps`, a tuple of `Inputs`; both list what they read of each in `reads=`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

from analysis.bounds import SAID, Scale
from analysis.code import code_of
from analysis.errors import BadDeclaration, UnknownName
from analysis.knob import Knob, check_named, docstring_section, signature
from analysis.result import Axis, Reason
from analysis.slots import SLOTS, Layered, Shape
from analysis.statistic import State, statistics

SIDES = ("a", "b")
STEPS = ("steps",)
FAMILIES = (
    "routing",
    "router",
    "coupling",
    "function",
    "representation",
    "specialisation",
    "trajectories",
    "compare",
)


@dataclass(frozen=True)
class Inputs:
    """What one checkpoint brings to a measure: its shape, the merged states and the weight slots the measure reads.

    Attribute access by name: `a.prompt_counts`, `a.router_weight`; an optional slot that it does not bring is None.
    `label` is what a figure calls it on an axis of checkpoints.
    """

    shape: Shape
    states: Mapping[str, State] = field(default_factory=dict)
    weights: Mapping[str, Layered] = field(default_factory=dict)
    label: str = ""

    def __getattr__(self, name: str) -> Any:
        for kind in ("states", "weights"):
            # Through __dict__: before unpickling has filled it, every attribute comes here.
            if name in self.__dict__.get(kind, {}):
                return self.__dict__[kind][name]
        if name in SLOTS and SLOTS[name].optional:
            return None
        raise AttributeError(name)


@dataclass(frozen=True)
class Values:
    """A measure's raw answer where a bare tensor is not enough: its own labels, caveats, facts, why there is a NaN.

    `arrays` are what the values were made from and others may build on, by name: they are kept beside the answer.
    `trials` says of how many tokens each share is, for a measure on that scale.
    """

    values: Tensor
    axes: tuple[Axis, ...] | None = None
    caveats: tuple[str, ...] = ()
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    trials: Tensor | None = None


@dataclass(frozen=True)
class Chance:
    """A measure's null: mean and 95 % band (broadcastable to its values) and how they were found.

    `facts` are single numbers that only the null can know, e.g. a permutation p; they join those of the answer. `p` is
    that of each case, corrected for all of them, broadcastable to the values.
    """

    mean: Tensor
    low: Tensor
    high: Tensor
    how: str
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    p: Tensor | None = None


@dataclass
class Measure:
    """A registered measure and what it says of itself."""

    name: str
    function: Callable[..., Tensor | Values]
    title: str
    question: str
    unit: str
    family: str
    source: str
    axes: tuple[str, ...]
    reads: tuple[str, ...]
    sides: tuple[str, ...]
    knobs: tuple[Knob, ...]
    interval_reason: str | None
    null_reason: str | None
    needs_selection: bool
    plug_in: bool
    scale: Scale
    of_each_prompt: bool
    slow: bool
    slow_if: Mapping[str, Any] = field(default_factory=dict)
    no_interval_if: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    start_if: Mapping[str, Any] = field(default_factory=dict)
    null: Callable[..., Chance | Reason] | None = None

    def chance(self, function: Callable[..., Chance | Reason]) -> Callable[..., Chance | Reason]:
        """Decorator: the pure function that says where chance lies. Same arguments as the measure, plus `generator`.

        It may answer with a `Reason` where these knobs or this model leave chance undefined.
        """
        self.null = function
        return function

    def is_slow(self, knobs: Mapping[str, Any]) -> bool:
        """True when, with these knobs, it does not belong in the lane of short questions."""
        settled = self.settle(knobs)
        return self.slow or any(settled[name] == value for name, value in self.slow_if.items())

    def reads_start(self, knobs: Mapping[str, Any]) -> bool:
        """True when, with these settled knobs, its null reads step 0 of the same run."""
        return any(knobs[name] == value for name, value in self.start_if.items())

    def why_no_interval(self, knobs: Mapping[str, Any]) -> str | None:
        """The reason for having no interval, ever or with these settled knobs; None if it has one."""
        reasons = (told.get(knobs[name]) for name, told in self.no_interval_if.items())
        return self.interval_reason or next(filter(None, reasons), None)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the statistics it reads; empty for a measure of weights alone."""
        return tuple(name for name in self.reads if name not in SLOTS)

    @property
    def caveat(self) -> str:
        """How not to misread it: the `Caveat:` section of its docstring, as one line."""
        return docstring_section(self.function, "Caveat")

    @property
    def code(self) -> str:
        """Digest of the code behind its numbers: its file, what that imports, its statistics, the resampling."""
        functions = (self.function, *(statistics()[s].function for s in self.statistics))
        modules = [module for function in functions if (module := inspect.getmodule(function))]
        return code_of([*modules, importlib.import_module("analysis.inference")])

    def settle(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """All knobs with defaults filled in; raises `UnknownName` or `BadKnob`."""
        known = {knob.name: knob for knob in self.knobs}
        for name in knobs:
            if name not in known:
                raise UnknownName(f"measure {self.name!r} has no knob {name!r}; it has: {', '.join(known) or 'none'}")
        return {name: knob.check(knobs.get(name, knob.default)) for name, knob in known.items()}


_REGISTRY: dict[str, Measure] = {}


def measure(
    *,
    title: str,
    question: str,
    unit: str,
    family: str,
    source: str,
    axes: tuple[str, ...],
    reads: tuple[str, ...] = (),
    interval: str | None = None,
    null: str | None = None,
    needs_selection: bool = False,
    plug_in: bool = False,
    scale: Scale = "as it is",
    of_each_prompt: bool = False,
    slow: bool = False,
    slow_if: Mapping[str, Any] | None = None,
    no_interval_if: Mapping[str, Mapping[Any, str]] | None = None,
    start_if: Mapping[str, Any] | None = None,
) -> Callable[[Callable], Measure]:
    """Register the decorated function as a measure under its own name.

    `interval` and `null` are reasons for having none. `needs_selection` fills NaN, with that reason, for a fully soft
    router. `plug_in` asks for the bias-corrected centre in the jackknife; `scale` says what kind of number it is, where
    its error depends on how large it is, so that bounds are found where it does not. `of_each_prompt`: each row is one
    prompt, and what is left out are stretches of its tokens. `slow` keeps it out of the lane of short questions;
    `slow_if` does so for these values of its knobs. `no_interval_if` has, for a knob, the values that leave no interval
    and why: {"criterion": {"max": "leaving prompts out can only lower it"}}. `start_if` has those at which the null
    also reads step 0 of the same run: it takes a keyword `start`, `Inputs` or None where there is none.

    Returns:
        A decorator that gives the registered `Measure`.

    Raises:
        BadDeclaration: If the name is taken, or a slot, statistic, family or knob is not what it can be.

    Source:
        Ours: the file is the registration, so there is no list to keep in step.
    """

    def register(function: Callable) -> Measure:
        name, (inputs, knobs) = function.__name__, signature(function)
        sides = tuple(p for p in inputs if p in SIDES + STEPS)
        read = reads if sides else tuple(inputs)
        _check(name, function, family, inputs, sides, read)
        check_named(name, knobs, slow_if or {}, no_interval_if or {}, start_if or {})
        _check_resampling(name, read, scale, plug_in, of_each_prompt)
        about, declined = (title, question, unit, family, source), dict(no_interval_if or {})
        rules = (interval, null, needs_selection, plug_in, scale, of_each_prompt, slow, dict(slow_if or {}), declined)
        more = (dict(start_if or {}),)
        _REGISTRY[name] = Measure(name, function, *about, axes, read, sides, knobs, *rules, *more)
        return _REGISTRY[name]

    return register


def _check(
    name: str, function: Callable, family: str, inputs: list[str], sides: tuple[str, ...], read: tuple[str, ...]
) -> None:
    if name in _REGISTRY and _REGISTRY[name].function.__module__ != function.__module__:
        raise BadDeclaration(
            f"measure {name!r} is declared twice: {_REGISTRY[name].function.__module__}, {function.__module__}"
        )
    if family not in FAMILIES:
        raise BadDeclaration(f"measure {name!r}: family {family!r}; the pages are {', '.join(FAMILIES)}")
    if sides and (sides not in (SIDES, STEPS) or len(inputs) != len(sides)):
        raise BadDeclaration(
            f"measure {name!r}: sides are the two positional arguments a, b, or the one argument steps; seen {inputs}"
        )
    known = set(statistics()) | set(SLOTS)
    if unknown := [r for r in read if r not in known]:
        raise BadDeclaration(
            f"measure {name!r} reads {unknown}; known slots and statistics: {', '.join(sorted(known))}"
        )


def _check_resampling(name: str, read: tuple[str, ...], scale: Scale, plug_in: bool, of_each_prompt: bool) -> None:
    if scale not in SAID or (plug_in and scale != "as it is"):
        raise BadDeclaration(f"measure {name!r}: scale {scale!r}; known: {', '.join(SAID)}, plug-in as it is only")
    if of_each_prompt and any(r not in statistics() or set(statistics()[r].groups) != {"token"} for r in read):
        raise BadDeclaration(f"measure {name!r}: of each prompt it is only of what is kept token by token: {read}")


@cache
def measures() -> dict[str, Measure]:
    """All measures: whatever file lies in `analysis/measures`.

    Returns:
        Measures by name, in the order of their files.

    Source:
        Ours: discovery by walking the folder.
    """
    package = importlib.import_module("analysis.measures")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTRY)


def get(name: str) -> Measure:
    """The measure of this name.

    Returns:
        The registered measure.

    Raises:
        UnknownName: With the known names.

    Source:
        Ours.
    """
    if name not in measures():
        raise UnknownName(f"no measure {name!r}; known: {', '.join(sorted(measures()))}")
    return measures()[name]
