"""The one sentence over a figure, made from its values. Never a verdict without its null and count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontend.answer import Answer
from frontend.scales import without_self
from frontend.views import Side, kind_of
from frontend.views.series import flat
from frontend.views.side import LETTERS
from frontend.views.states import changes
from frontend.words import number, span

TOO_FEW = 2000


def sentence(sides: Sequence[Side]) -> str:
    """What the values say, with what they said at step 0 where that stands beside them."""
    first = sides[0].answer
    if not any(np.isfinite(side.answer.values).any() for side in sides):
        return _capital(_undefined(first)) + "."
    kind = kind_of(first)
    told = [_of(kind, side.answer) for side in sides]
    if len(sides) == 1:
        return _capital(told[0]) + "."
    names = {"control": "At step 0"} | {letter: letter.upper() for letter in LETTERS}
    return " ".join(f"{names.get(s.role, s.label)}: {text}." for s, text in zip(sides, told, strict=True))


def sentence_of_runs(sides: Sequence[Side]) -> str:
    """Many runs at once: the mean over layers of each, and of its step 0, beside the floor."""
    starts = {s.label: _mean(s.answer.values) for s in sides if s.role == "control"}
    told = []
    for side in (s for s in sides if s.role != "control"):
        beside = [_bounds_of_mean(side.answer)]
        beside += [f"step 0: {number(starts[side.label])}"] if side.label in starts else []
        beside = [part for part in beside if part]
        told.append(f"{side.label} {number(_mean(side.answer.values))}" + (f" ({'; '.join(beside)})" if beside else ""))
    floors = [float(np.nanmax(s.answer.null.high)) for s in sides if s.answer.null is not None]
    floor = f" The floor reaches {number(max(floors))}." if floors else ""
    return f"Mean over layers: {', '.join(told)}.{floor}"


def sentence_of_series(sides: Sequence[Side]) -> str:
    """One answer a step: where the run began, and where it ended."""
    first, last = sides[0], sides[-1]
    if not any(np.isfinite(side.answer.values).any() for side in sides):
        return _capital(_undefined(first.answer)) + "."
    if first.answer.values.ndim == 2:
        told = [f"at step {s.label} from {_extent(s.answer.values)}" for s in (first, last)]
        return _capital(", ".join(told)) + _beyond(last.answer, "experts") + " at the end."
    over = "mean over layers and pairs" if first.answer.values.ndim == 3 else "mean over layers"
    start, end = (number(_mean(flat(s.answer, s.answer.values))) for s in (first, last))
    return f"From {start} at step {first.label} to {end} at step {last.label} ({over})."


def caution(answer: Answer) -> str | None:
    """The floor told first, where a small sample makes it cover most of what is drawn."""
    if answer.null is None or not 0 < answer.tokens < TOO_FEW:
        return None
    inside, counted = _inside(answer)
    if counted == 0 or inside < counted / 2:
        return None
    floor = number(float(np.nanmax(answer.null.high)))
    held = f"the chance band (up to {floor}) holds {inside} of the {counted} values drawn"
    return f"{answer.tokens:,} tokens: {held}. More prompts narrow it."


def _of(kind: str, answer: Answer) -> str:
    if not np.isfinite(answer.values).any():
        return _undefined(answer)
    return {
        "number": _number,
        "scatter": _scatter,
        "matrix": _matrix,
        "mosaic": _mosaic,
        "line": _line,
        "course": _course,
        "tracks": _tracks,
        "states": _states,
    }.get(kind, _cells)(answer)


def _number(answer: Answer) -> str:
    value = float(answer.values)
    text = number(value)
    if answer.interval is not None:
        text += f" ({answer.interval.level:.0%} {span(float(answer.interval.low), float(answer.interval.high))})"
    if answer.null is not None:
        beyond = "within" if float(answer.null.low) <= value <= float(answer.null.high) else "beyond"
        text += f", {beyond} chance ({span(float(answer.null.low), float(answer.null.high))})"
    return text


def _line(answer: Answer) -> str:
    values, axis = answer.values, answer.axes[0]
    if values.ndim == 2:
        means = [
            f"{name} {number(float(np.nanmean(values[:, j])))}"
            for j, name in enumerate(answer.axes[1].labels)
            if np.isfinite(values[:, j]).any()
        ]
        return f"mean over {len(axis.labels)} {_plural(axis.name)}: " + ", ".join(means)
    top = int(np.nanargmax(values))
    where = f"{axis.name} {axis.labels[top]}"
    bounds = f" ({told})" if (told := _bounds_of_mean(answer)) else ""
    text = f"mean {number(float(np.nanmean(values)))}{bounds}, highest {number(float(values[top]))} in {where}"
    return text + _beyond(answer, _plural(axis.name))


def _course(answer: Answer) -> str:
    steps, values = answer.axes[0].labels, answer.values.reshape(len(answer.axes[0].labels), -1)
    first, last = (_mean(values[i]) for i in (0, -1))
    over = f" (mean over {values.shape[1]} {_plural(answer.axes[-1].name)})" if values.shape[1] > 1 else ""
    return f"from {number(first)} at step {steps[0]} to {number(last)} at step {steps[-1]}{over}" + _beyond(
        answer, "cells"
    )


def _tracks(answer: Answer) -> str:
    layers, steps, experts, _ = answer.values.shape
    shown = [float(v) for k, v in answer.facts.items() if k.startswith("variance shown") and isinstance(v, int | float)]
    share = f"; the planes show {min(shown):.0%} to {max(shown):.0%} of the variance" if shown else ""
    return f"{experts} experts in each of {layers} layers over {steps} steps{share}{_blank(answer)}"


def _states(answer: Answer) -> str:
    cells = answer.values[0].size
    ends = [f"{int(np.nansum(answer.values[i]))} of {cells} in use at step {answer.axes[0].labels[i]}" for i in (0, -1)]
    moved = changes(answer.values)
    return f"{ends[0]}, {ends[1]}; births: {int((moved > 0).sum())}, deaths: {int((moved < 0).sum())}{_blank(answer)}"


def _cells(answer: Answer) -> str:
    finite = answer.values[np.isfinite(answer.values)]
    places = [
        np.unravel_index(i, answer.values.shape) for i in (np.nanargmin(answer.values), np.nanargmax(answer.values))
    ]
    low, high = (
        ", ".join(f"{a.name} {a.labels[i]}" for a, i in zip(answer.axes, place, strict=True)) for place in places
    )
    text = f"from {number(float(finite.min()))} ({low}) to {number(float(finite.max()))} ({high})"
    return text + _beyond(answer, "cells") + _blank(answer)


def _matrix(answer: Answer) -> str:
    groups = answer.axes[0].groups
    upper = np.triu_indices(len(answer.values), 1)
    values = answer.values[upper]
    if not groups:
        return f"median {number(float(np.nanmedian(values)))} over {np.isfinite(values).sum():,} pairs" + _blank(answer)
    named = np.array(groups, dtype=object)
    same = named[upper[0]] == named[upper[1]]
    within, across = values[same], values[~same]
    pairs = f"{np.isfinite(within).sum():,} and {np.isfinite(across).sum():,} pairs"
    return f"within a category {number(_mean(within))}, across {number(_mean(across))} ({pairs})"


def _mosaic(answer: Answer) -> str:
    # Two experts of one checkpoint; of two checkpoints, the diagonal says as much as the rest.
    found = without_self(answer)
    where = " off the diagonal" if np.isnan(found).sum() > np.isnan(answer.values).sum() else ""
    extent = span(float(np.nanmin(found)), float(np.nanmax(found)))
    text = f"median{where} {number(float(np.nanmedian(found)))}, from {extent}"
    return text + _beyond(answer, "cells") + _blank(answer)


def _scatter(answer: Answer) -> str:
    shown = int(np.isfinite(answer.values).all(1).sum())
    shares = {k: float(v) for k, v in answer.facts.items() if isinstance(v, int | float) and v != int(v)}
    facts = [f"{k.replace('_', ' ')} {number(v)}" for k, v in shares.items()][:2]
    return f"{shown} of {len(answer.values)} shown" + (", " + ", ".join(facts) if facts else "")


def _inside(answer: Answer) -> tuple[int, int]:
    null, values = answer.null, answer.values
    if null is None:
        return 0, 0
    low, high = np.broadcast_to(null.low, values.shape), np.broadcast_to(null.high, values.shape)
    counted = np.isfinite(values) & np.isfinite(low) & np.isfinite(high)
    return int((counted & (low <= values) & (values <= high)).sum()), int(counted.sum())


def _beyond(answer: Answer, what: str) -> str:
    inside, counted = _inside(answer)
    return f"; beyond chance in {counted - inside} of {counted} {what}" if counted else ""


def _blank(answer: Answer) -> str:
    blank = int(np.isnan(answer.values).sum())
    return f"; {blank} blank, undefined" if blank else ""


def _undefined(answer: Answer) -> str:
    # A caveat that explains a NaN says so by its first word; the others are about numbers that exist.
    why = next((c.removeprefix("NaN: ") for c in answer.caveats if c.startswith("NaN: ")), "")
    return "undefined everywhere: " + (why.rstrip(".") or "the answer holds no finite value")


def _extent(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return span(float(known.min()), float(known.max())) if len(known) else "undefined"


def _bounds_of_mean(answer: Answer) -> str:
    """Those of the mean over layers, where the answer has them."""
    band = answer.interval
    return f"{band.level:.0%} {span(*band.over_layers)}" if band is not None and band.over_layers else ""


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _plural(name: str) -> str:
    return name.replace("_", " ") + "s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
