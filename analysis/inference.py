"""Uncertainty from the monoid: a measure evaluated on merges that leave one block of prompts out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis import beside
from analysis.alignment import aligned
from analysis.bounds import FEWEST_BLOCKS, LEVEL, SAID, jackknife
from analysis.errors import BadDeclaration, TooFew
from analysis.measure import STEPS, Chance, Inputs, Measure, Values
from analysis.result import Axis, Interval, Null, Reason, Result
from analysis.slots import TOKEN_CLASSES
from analysis.statistic import get as get_statistic
from analysis.token_rows import STRETCHES

FEWEST_TOKENS = 5 * STRETCHES
"""Of a prompt that has an interval of its own: in simulations those of 16 tokens held only 90 %."""
NO_VALUE = "no value is defined, so there is nothing to put an interval around"
SOFT_REASON = "every token uses every expert (k = E): there is no selection to count"


def evaluate(
    measure: Measure, sides: tuple[Inputs, ...], knobs: Mapping[str, Any], start: Inputs | None = None
) -> Result:
    """The measure's full answer: values, null, interval, caveats, counts.

    Args:
        measure: What to ask.
        sides: One `Inputs` per side (one for an ordinary measure; in order for a measure of steps).
        knobs: Any of the measure's knobs; the rest take their defaults.
        start: Step 0 of the same run, for a null that reads it.

    Returns:
        The result, in the measure's unit, prompts sorted by category.

    Raises:
        GeometryError: Whatever the measure refuses, and sides whose prompts cannot be matched.

    Source:
        Ours: the framework resamples, so that no measure can forget its interval.
    """
    settled = measure.settle(knobs)
    together, unmatched = aligned((*sides, *([] if start is None else [start])))
    sides, starts = together[: len(sides)], together[len(sides) :]
    states = [state for side in sides for state in side.states.values()]
    tokens, prompts = _tokens(sides), max((len(s.prompts) for s in states), default=0)
    if measure.needs_selection and any(side.shape.soft for side in sides):
        return _nothing_selected(measure, sides, tokens, prompts)
    raw = _values(_call(measure.function, measure, sides, settled))
    sizes = dict(zip(measure.axes, raw.values.shape, strict=False))
    axes = raw.axes or tuple(_axis(name, sides, sizes.get(name, 0)) for name in measure.axes)
    if (sizes := tuple(len(a.labels) for a in axes)) != tuple(raw.values.shape):
        raise BadDeclaration(f"{measure.name}: its axes have sizes {sizes}, its values {tuple(raw.values.shape)}")
    null, found = _null(measure, sides, settled, starts)
    interval = _interval(measure, sides, settled, raw)
    return Result(
        measure=measure.name,
        values=_numpy(raw.values),
        axes=axes,
        unit=measure.unit,
        null=null,
        interval=interval,
        caveats=tuple(
            c for c in (measure.caveat, *raw.caveats, *unmatched, *_unbounded(measure, raw.values, interval)) if c
        ),
        facts={**raw.facts, **found},
        tokens=tokens,
        prompts=prompts,
        arrays={name: array.detach().cpu().numpy() for name, array in raw.arrays.items()},
    )


def content_generator(measure: Measure, sides: tuple[Inputs, ...]) -> torch.Generator:
    """A generator seeded by what is measured, so the same question draws the same null on any day.

    Returns:
        A generator on the CPU; the order of experts, layers, prompts and shards does not change its seed.

    Source:
        Ours. Float sums are left out of the seed: their last digit depends on the order in which shards merged. Rows of
        tokens, companions of a sample and the experts' own weights are left out too: they name experts, or are large.
    """
    digest = hashlib.sha256(measure.name.encode())
    for side in sides:
        rows = [w for name, w in side.weights.items() if name in ("router_weight", "router_bias")]
        for tensor in (*_counts(side), *(w for w in rows if isinstance(w, Tensor))):
            numbers = tensor.detach().cpu()
            digest.update(
                np.sort((numbers.double() if numbers.is_floating_point() else numbers).numpy(), axis=None).tobytes()
            )
        digest.update(repr(sorted({key for s in side.states.values() for key in s.prompts.keys})).encode())
    return torch.Generator().manual_seed(int.from_bytes(digest.digest()[:8], "big") >> 1)


def _counts(side: Inputs) -> list[Tensor]:
    found = []
    for state in side.states.values():
        kinds = get_statistic(state.statistic).groups
        found += [state[name] for kind in ("prompt", "sum") for name in kinds.get(kind, ())]
        found += [state["hash"]] if "sample" in kinds else []
    return [array for array in found if not array.is_floating_point()]


def _call(function: Callable, measure: Measure, sides: tuple[Inputs, ...], keywords: Mapping[str, Any]) -> Any:
    if measure.sides == STEPS:
        return function(sides, **keywords)
    if measure.sides:
        return function(*sides, **keywords)
    return function(*(getattr(sides[0], name) for name in measure.reads), **keywords)


def _values(raw: Tensor | Values) -> Values:
    return raw if isinstance(raw, Values) else Values(raw)


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).cpu().numpy()


def _tokens(sides: tuple[Inputs, ...]) -> int:
    states = [state for side in sides for state in side.states.values()]
    counts = [int(state["tokens"].sum()) for state in states if "tokens" in state.arrays]
    counts += [len(state["position"]) for state in states if "token" in get_statistic(state.statistic).groups]
    return max(counts, default=0)


def _axis(name: str, sides: tuple[Inputs, ...], size: int = 0) -> Axis:
    plain, side = name.removesuffix("_b"), sides[0]
    if plain == "prompt" and side.states:
        # All states of a side hold the same prompts in the same order: `aligned` has seen to it.
        prompts = next(iter(side.states.values())).prompts
        return Axis(name, prompts.ids, prompts.categories)
    # A measure that has something to say of a shared expert says it last.
    experts = beside.labels(side.shape)
    experts = experts if size == len(experts) else experts[: side.shape.experts]
    steps = tuple(each.label or str(n) for n, each in enumerate(sides))
    counted = tuple(str(n + 1) for n in range(size))
    labels = {
        "layer": side.shape.layers,
        "expert": experts,
        "step": steps,
        "component": counted,
        "class": TOKEN_CLASSES,
    }.get(plain)
    if labels is None:
        raise BadDeclaration(f"axis {name!r} has no labels of its own: the measure must return `Values` with its axes")
    return Axis(name, labels)


def _null(
    measure: Measure, sides: tuple[Inputs, ...], knobs: Mapping[str, Any], starts: tuple[Inputs, ...]
) -> tuple[Null | Reason, Mapping[str, int | float | str]]:
    if measure.null is None:
        return Reason(measure.null_reason or "no null is defined for this measure"), {}
    keywords = {**knobs, "generator": content_generator(measure, sides)}
    if measure.start_if:
        keywords["start"] = starts[0] if starts else None
    chance = _call(measure.null, measure, sides, keywords)
    if not isinstance(chance, Chance):
        return chance, {}
    p = None if chance.p is None else _numpy(chance.p)
    return Null(_numpy(chance.mean), _numpy(chance.low), _numpy(chance.high), chance.how, p), chance.facts


def _without(side: Inputs, unit: int, of_tokens: bool) -> Inputs:
    left = {name: s.without_stretch(unit) if of_tokens else s.without_block(unit) for name, s in side.states.items()}
    return replace(side, states=left)


def _interval(measure: Measure, sides: tuple[Inputs, ...], knobs: Mapping[str, Any], full: Values) -> Interval | Reason:
    if not measure.statistics:
        return Reason("exact: reads weights only")
    if why := measure.why_no_interval(knobs):
        return Reason(why)
    if measure.of_each_prompt:
        return _interval_of_each_prompt(measure, sides, knobs, full)
    blocks = tuple(sorted({block for side in sides for state in side.states.values() for block in state.blocks}))
    if len(blocks) < FEWEST_BLOCKS:
        return Reason(f"the prompts fall into {len(blocks)} block(s); the jackknife needs {FEWEST_BLOCKS}")
    try:
        parts = {block: _left_out(measure, sides, knobs, block) for block in blocks}
    except TooFew as error:
        return Reason(f"not defined with a block of prompts left out: {error}")
    rules = {"plug_in": measure.plug_in, "scale": measure.scale, "trials": full.trials}
    # A lambda: shape checks wrap a nested def anew at each call, which tests pay for a thousand times over.
    _, low, high = jackknife(lambda block: full.values if block is None else parts[block], blocks, **rules)
    how = f"delete-one-block jackknife over {len(blocks)} blocks of prompts, Student t"
    how += (", bias-corrected centre" if measure.plug_in else "") + SAID[measure.scale]
    how += "; NaN where the value is undefined without one of the blocks" if low.isnan().any() else ""
    return _bounded(measure, full.values, low, high, how, _over_layers(measure, full.values, parts))


def _over_layers(measure: Measure, full: Tensor, parts: Mapping[int, Tensor]) -> tuple[float, float] | None:
    """Bounds of the mean over the layers that have a value; None where layers are not all that the values have."""
    if measure.axes != ("layer",):
        return None
    there, scale = full.isfinite(), "as it is" if measure.scale == "share" else measure.scale
    mean = lambda block: (full if block is None else parts[block])[there].mean()  # noqa: E731
    _, low, high = jackknife(mean, tuple(parts), plug_in=measure.plug_in, scale=scale)
    return None if bool(low.isnan() | high.isnan()) else (float(low), float(high))


def _interval_of_each_prompt(
    measure: Measure, sides: tuple[Inputs, ...], knobs: Mapping[str, Any], full: Values
) -> Interval | Reason:
    """One prompt's value varies with the tokens it might have had. Neighbours are alike, so stretches are left out."""
    value = lambda unit: full.values if unit is None else _left_out(measure, sides, knobs, unit)  # noqa: E731
    try:
        _, low, high = jackknife(value, tuple(range(STRETCHES)), scale=measure.scale)
    except TooFew as error:
        return Reason(f"not defined with a stretch of each prompt left out: {error}")
    state = next(iter(sides[0].states.values()))
    short = torch.bincount(state["prompt"], minlength=len(full.values)) < FEWEST_TOKENS
    # Stretches that all say the same say nothing of the spread.
    silent = short.view(-1, *[1] * (full.values.ndim - 1)) | (low == high)
    low, high = (bound.masked_fill(silent, math.nan) for bound in (low, high))
    how = f"delete-one-stretch jackknife over {STRETCHES} stretches of each prompt's tokens, Student t"
    how += f"{SAID[measure.scale]}; NaN for prompts of fewer than {FEWEST_TOKENS} tokens and without a difference"
    return _bounded(measure, full.values, low, high, how)


def _bounded(
    measure: Measure,
    values: Tensor,
    low: Tensor,
    high: Tensor,
    how: str,
    over_layers: tuple[float, float] | None = None,
) -> Interval | Reason:
    if not bool((low.isfinite() | high.isfinite()).any()):
        undefined = bool(values.isnan().all())
        return Reason(NO_VALUE if undefined else f"no value has bounds: {_why_unbounded(measure)}")
    return Interval(_numpy(low), _numpy(high), LEVEL, how, over_layers)


def _why_unbounded(measure: Measure) -> str:
    if measure.of_each_prompt:
        return f"their prompts have fewer than {FEWEST_TOKENS} tokens, or no stretch of them says anything else"
    return "undefined without one of the blocks of prompts"


def _unbounded(measure: Measure, values: Tensor, interval: Interval | Reason) -> tuple[str, ...]:
    if isinstance(interval, Reason):
        return ()
    known = ~np.isnan(_numpy(values))
    lost = int((known & np.isnan(interval.low)).sum())
    if not lost:
        return ()
    return (f"No interval for {lost} of {int(known.sum())} values: {_why_unbounded(measure)}.",)


def _left_out(measure: Measure, sides: tuple[Inputs, ...], knobs: Mapping[str, Any], unit: int) -> Tensor:
    return _values(
        _call(measure.function, measure, tuple(_without(s, unit, measure.of_each_prompt) for s in sides), knobs)
    ).values


def _nothing_selected(measure: Measure, sides: tuple[Inputs, ...], tokens: int, prompts: int) -> Result:
    axes = tuple(_axis(name, sides) for name in measure.axes)
    values = np.full(tuple(len(a.labels) for a in axes), math.nan)
    why = Reason(SOFT_REASON)
    caveats = (f"NaN: {SOFT_REASON}", measure.caveat)
    return Result(measure.name, values, axes, measure.unit, why, why, caveats, {}, tokens, prompts)
