"""Which options each router reads, and what each takes: fields of `LabMoeConfig`, as knobs."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

from analysis.errors import BadKnob, UnknownName
from analysis.knob import PLAIN, Knob, Range
from analysis.lab.config import LabMoeConfig
from analysis.lab.routers import DENSE, option_names

RANGES = {
    "router_aux_loss_coef": Range(0),
    "router_z_loss_coef": Range(0),
    "router_bias_update_speed": Range(0),
    "kmeans_ema": Range(0, 1),
    "kmeans_temperature": Range(0, ends=False),
    "expert_choice_per_token": Range(1),
}


def router_options(router: str) -> dict[str, Knob]:
    """The options of a router with their defaults, by name.

    Returns:
        In alphabetical order; none for the dense control.

    Raises:
        UnknownName: If no router has this name.

    Source:
        Ours: each router declares what it reads (`options`), the config its type and default.
    """
    names = () if router == DENSE else option_names(router)
    fields = {field.name: field for field in dataclasses.fields(LabMoeConfig)}
    return {name: _knob(fields[name]) for name in names}


def checked(router: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options, each in its own type.

    Returns:
        What `LabMoeConfig` takes.

    Raises:
        UnknownName: If the router reads no such option; says which it reads.
        BadKnob: If a value is outside what the option takes; says what it takes.

    Source:
        Ours.
    """
    known = router_options(router)
    if unknown := sorted(options.keys() - known.keys()):
        raise UnknownName(
            f"router {router!r} has no option {unknown[0]!r}; it has {', '.join(known) if known else 'none'}"
        )
    try:
        return {name: known[name].check(value) for name, value in options.items()}
    except BadKnob as error:
        raise BadKnob(f"router {router!r}: {error}") from error


def _knob(field: dataclasses.Field) -> Knob:
    kind: Any = field.type
    if typing.get_origin(kind) is Literal:
        return Knob(field.name, "choice", field.default, typing.get_args(kind))
    return Knob(field.name, PLAIN[kind], field.default, (), RANGES.get(field.name))
