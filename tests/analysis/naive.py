"""The readings of all measures that have one, and the number they give for a planted world."""

from __future__ import annotations

from functools import cache
from inspect import signature

from tests.analysis import (
    naive_experts,
    naive_load,
    naive_prompts,
    naive_router,
    naive_sides,
    naive_subspaces,
)
from tests.analysis.naive_world import Plain
from tests.analysis.plants import Planted

OF_ONE = (
    naive_load.READINGS
    | naive_prompts.READINGS
    | naive_router.READINGS
    | naive_experts.READINGS
    | naive_subspaces.READINGS
)
OF_TWO = naive_sides.READINGS

plain = cache(Plain)
"""Each world is read once: what is made of it is kept on it."""


def reads(name: str, knobs) -> bool:
    """Whether there is a reading of the measure as it is asked."""
    found = (OF_ONE | OF_TWO).get(name)
    return found is not None and set(knobs) <= set(signature(found).parameters)


def number(name: str, base: Planted, seen: Planted, knobs):
    """What the measure has to say of this world; where it has two sides, the first is the unplanted one."""
    if name in OF_TWO:
        return OF_TWO[name](plain(base), plain(seen), **knobs)
    return OF_ONE[name](plain(seen), **knobs)
