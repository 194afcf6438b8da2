"""The sides of a question brought to the same prompts in the same order, whatever order the shards merged in."""

from __future__ import annotations

from dataclasses import replace

from analysis.errors import NotComparable
from analysis.measure import Inputs
from analysis.slots import Prompts


def aligned(sides: tuple[Inputs, ...]) -> tuple[tuple[Inputs, ...], tuple[str, ...]]:
    """All states over the prompts that every side has, sorted by category, id and text digest.

    Args:
        sides: What each checkpoint brings.

    Returns:
        The sides, and a caveat for every difference that was cut away (empty if there was none).

    Raises:
        NotComparable: If two states of one side hold different prompts, or two sides have none in common.

    Source:
        Ours: an answer must not depend on the order in which shards merged.
    """
    held = [prompts for side in sides if (prompts := _prompts(side)) is not None]
    if not held:
        return sides, ()
    shared = set(held[0].keys).intersection(*(set(p.keys) for p in held[1:]))
    everything = set().union(*(p.keys for p in held))
    if everything and not shared:
        raise NotComparable(f"the sides have no prompt in common; they hold {[len(p) for p in held]} prompts")
    label = dict(zip(held[0].keys, held[0].categories, strict=True))
    order = sorted(shared, key=lambda key: (label[key], key))
    caveats = ()
    if len(shared) < len(everything):
        caveats = (f"The sides hold {[len(p) for p in held]} prompts; only the {len(shared)} they share are compared.",)
    return tuple(_arranged(side, order, label) for side in sides), caveats


def _prompts(side: Inputs) -> Prompts | None:
    held = {name: state.prompts for name, state in side.states.items()}
    if len({frozenset(p.keys) for p in held.values()}) > 1:
        sizes = {name: len(p) for name, p in held.items()}
        raise NotComparable(f"the statistics of one checkpoint hold different prompts: {sizes}")
    return next(iter(held.values()), None)


def _arranged(side: Inputs, order: list[tuple[str, str]], label: dict[tuple[str, str], str]) -> Inputs:
    states = {}
    for name, state in side.states.items():
        row = {key: r for r, key in enumerate(state.prompts.keys)}
        states[name] = state.take([row[key] for key in order]).labelled(label)
    return replace(side, states=states)
