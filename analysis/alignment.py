"""The sides of a question brought to the same prompts in the same order, and what sides must have in common."""

from __future__ import annotations

from dataclasses import replace

from analysis.common_ends import at_common_ends, same_ends
from analysis.errors import NotComparable
from analysis.measure import Inputs
from analysis.slots import Prompts


def aligned(sides: tuple[Inputs, ...]) -> tuple[tuple[Inputs, ...], tuple[str, ...]]:
    """All states over the prompts that every side has, sorted by category, id and text digest, tokens by their ends.

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
    found, cut = at_common_ends(tuple(_arranged(side, order, label) for side in sides))
    return found, caveats + cut


def same_layers(a: Inputs, b: Inputs) -> int:
    """The MoE layers, which both sides must have in common.

    Returns:
        How many there are.

    Raises:
        NotComparable: With the layers of both.

    Source:
        Ours: an expert has counterparts in its own layer alone.
    """
    if a.shape.layers != b.shape.layers:
        first, second = (", ".join(side.shape.layers) for side in (a, b))
        raise NotComparable(
            f"a has {len(a.shape.layers)} MoE layers ({first}), b has {len(b.shape.layers)} ({second}): what is "
            "compared layer by layer needs the same ones on both sides"
        )
    return len(a.shape.layers)


def same_width(a: Inputs, b: Inputs, what: str) -> int:
    """The width of the hidden state, which both sides must have in common.

    Returns:
        Dimensions.

    Raises:
        NotComparable: With the widths of both and the way out.

    Source:
        Ours: vectors of different spaces have no cosine.
    """
    if a.shape.model != b.shape.model:
        raise NotComparable(
            f"a has hidden states of {a.shape.model} dimensions, b of {b.shape.model}: {what} lie in different spaces; "
            "co-selection compares experts by the tokens they take"
        )
    return a.shape.model


def same_tokens(a: Inputs, b: Inputs) -> int:
    """The tokens into which the prompts are cut, or their ends, which both sides must have in common.

    Returns:
        How many there are.

    Raises:
        NotComparable: With the number of tokens of both.

    Source:
        Ours: a choice can be compared only where both have read the same text.
    """
    routes = a.token_routes, b.token_routes
    if not same_ends(*routes):
        counts = [len(side["position"]) for side in routes]
        raise NotComparable(
            f"a and b cut the prompts into different tokens ({counts[0]} and {counts[1]}): what is compared token by "
            "token needs checkpoints of one tokenizer, or tokens that end at the same characters"
        )
    return len(routes[0]["position"])


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
