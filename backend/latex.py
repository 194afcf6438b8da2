"""An answer as a LaTeX table: `booktabs` rules, and under it what a number must not stand without.

Whatever came from somebody else (prompt ids, checkpoint names, sentences) is escaped: it can print, and nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.result import Interval, Null, Result
from backend.errors import Refusal

MOST_ROWS = 2000
"""More than a reader turns over; such answers are for CSV and Parquet."""
MOST_COLUMNS = 12
ONE_PAGE = 40
"""Rows that fit a page; longer tables break over pages."""
UNDEFINED = "--"
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "−": "$-$",
}


def to_latex(result: Result, provenance: Mapping[str, Any]) -> str:
    """The table of an answer: a row for each label and a column for each of a short second axis, else a row a cell."""
    wide = result.values.ndim == 2 and result.values.shape[1] <= MOST_COLUMNS
    rows = result.values.shape[0] if wide else result.values.size
    if rows > MOST_ROWS:
        raise Refusal(
            f"{result.measure} would be a table of {rows:,} rows; LaTeX takes {MOST_ROWS:,}: take CSV instead."
        )
    head, body = _crossed(result) if wide else _listed(result)
    names = 1 if wide else result.values.ndim
    columns = "l" * names + "r" * (len(body[0]) - names if body else 1)
    name = "longtable" if rows > ONE_PAGE else "tabular"
    lines = [
        rf"% \usepackage{{booktabs{',longtable' if name == 'longtable' else ''}}}",
        rf"\begin{{{name}}}{{{columns}}}",
        r"\toprule",
        *(rf"{row} \\" for row in head),
        r"\midrule",
        *([r"\endhead"] if name == "longtable" else []),
        *(rf"{' & '.join(row)} \\" for row in body),
        r"\bottomrule",
        rf"\end{{{name}}}",
        "",
        r"\smallskip\noindent{\footnotesize",
        *(f"{escape(note)}." for note in _notes(result, provenance, wide)),
        r"\par}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """The text as LaTeX prints it, on one line; what begins a row must not be read as the end of the one before."""
    plain = "".join(_SPECIAL.get(letter, letter) for letter in " ".join(text.split()) if letter.isprintable())
    return "{}" + plain if plain[:1] in ("[", "*") else plain


def _number(value: float) -> str:
    if not math.isfinite(value):
        return UNDEFINED if math.isnan(value) else r"$\infty$" if value > 0 else r"$-\infty$"
    figures, _, power = f"{value:.4g}".partition("e")
    return rf"${figures}\times10^{{{int(power)}}}$" if power else f"${figures}$"


def _crossed(result: Result) -> tuple[list[str], list[list[str]]]:
    first, second = result.axes
    span = rf"\multicolumn{{{max(len(second.labels), 1)}}}{{c}}{{{_name(second.name)}}}"
    head = [f"{_name(first.name)} & {span}", " & ".join(["", *map(escape, second.labels)])]
    body = [
        [escape(label), *map(_number, row)]
        for label, row in zip(first.labels, np.asarray(result.values, float).tolist(), strict=True)
    ]
    return head, body


def _listed(result: Result) -> tuple[list[str], list[list[str]]]:
    shape, bounds = np.shape(result.values), _bounds(result)
    parts = [np.asarray(result.values, float), *(np.broadcast_to(part, shape) for _, both in bounds for part in both)]
    head = [" & ".join([*(_name(axis.name) for axis in result.axes), "value", *(name for name, _ in bounds)])]
    body = []
    for place in np.ndindex(*shape):
        labels = [escape(axis.labels[at]) for axis, at in zip(result.axes, place, strict=True)]
        told, values = [], iter(_number(float(part[place])) for part in parts)
        told.append(next(values))
        told += [" to ".join(next(values) for _ in both) for _, both in bounds]
        body.append(labels + told)
    return head, body


def _bounds(result: Result) -> list[tuple[str, tuple[np.ndarray, ...]]]:
    found: list[tuple[str, tuple[np.ndarray, ...]]] = []
    if isinstance(result.interval, Interval):
        level = rf"{result.interval.level:.0%}".replace("%", r"\,\%")
        found.append((f"{level} interval", (result.interval.low, result.interval.high)))
    if isinstance(result.null, Null):
        found.append(("null", (result.null.low, result.null.high)))
        found += [] if result.null.p is None else [("corrected $p$", (result.null.p,))]
    return found


def _notes(result: Result, provenance: Mapping[str, Any], wide: bool) -> list[str]:
    """What it is of, its unit, null, interval and caveats."""
    null, interval, prompts = result.null, result.interval, provenance.get("prompts")
    of = " and ".join(str(one["id"]) for one in provenance.get("checkpoints", ()))
    read = f" on {prompts['name']} ({result.prompts:,} prompts, {result.tokens:,} tokens)" if prompts else ""
    told = [f"{result.measure}{' of ' if of else ''}{of}{read}", f"Unit: {result.unit}"]
    told.append(f"Null: {null.how}{_flat(null)}" if isinstance(null, Null) else f"No null: {null.reason}")
    told.append(
        f"Interval: {interval.level:.0%}, {interval.how}"
        if isinstance(interval, Interval)
        else f"No interval: {interval.reason}"
    )
    if wide and _bounds(result):
        told.append("Bounds of each cell stand in the CSV and Parquet files of the same answer")
    if np.isnan(np.asarray(result.values, float)).any():
        told.append(f"{UNDEFINED}: undefined")
    told += [caveat.rstrip(".") for caveat in result.caveats]
    return [*told, f"Key: {provenance['key']}"] if provenance.get("key") else told


def _flat(null: Null) -> str:
    ends = [np.unique(part) for part in (null.low, null.high)]
    return f", {float(ends[0][0]):.4g} to {float(ends[1][0]):.4g}" if all(len(end) == 1 for end in ends) else ""


def _name(axis: str) -> str:
    return escape(axis.replace("_", " "))


def heading(title: str, sentences: Sequence[str] = ()) -> str:
    """What stands over one of several tables."""
    return "\n".join([rf"\paragraph{{{escape(title)}}}", *map(escape, sentences), ""])
