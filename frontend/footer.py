"""What stands under every figure: unit, tokens, null, interval, facts, source, caveat."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from dash import dcc, html

from frontend import words
from frontend.answer import Answer
from frontend.attributes import hyphened
from frontend.views.side import LETTERS, with_chance

if TYPE_CHECKING:
    from frontend.panel import Panel

FACTS = 8
"""Single numbers shown under a figure: enough for an effect with its spread, its pairs and its permutation p."""


MERGES = 3
"""Pairs of experts, the first of their axis, that a link leads on from."""
_OF_CHANCE = re.compile(r"\bp\b|\((max-statistic|corrected)\)")
_PAIR = re.compile(r"(.+)/E(\d+)-E(\d+)")


def foot(panel: Panel) -> html.Footer:
    """The footer of a panel in any state."""
    facts = [html.Span(text, className="fact") for text in _facts(panel)]
    if panel.sides:
        facts.insert(min(3, len(facts)), _null_fact(with_chance(panel.sides).answer))
    if panel.state == "done" and panel.missing:
        start = html.Button(
            "add step 0",
            type="button",
            className="textual",
            **hyphened({"data-act": "ask", "aria-label": f"Add step 0 to {panel.title}"}),
        )
        facts.append(html.Span(start, className="fact"))
    facts += [html.Span(link, className="fact") for link in _merges(panel)]
    # The measure's own caveat first, then what only these answers know: a cut prompt, a reason for a NaN, a weighting.
    own = [str(panel.measure.get("caveat") or "")]
    told = [caveat for side in panel.sides for caveat in side.answer.caveats]
    caveats = [html.Div(caveat, className="caveat") for caveat in dict.fromkeys(own + told) if caveat]
    return html.Footer([html.Div(facts, className="facts"), *caveats], className="plate-foot")


def _merges(panel: Panel) -> list[dcc.Link]:
    """From pairs of experts that a measure names, the first ones first, to what merging them would cost."""
    pairs = next((axis.labels for side in panel.sides[:1] for axis in side.answer.axes if axis.name == "pair"), ())
    asked = next((a.question for a in panel.asked), None)
    found = [match for name in pairs[:MERGES] if (match := _PAIR.fullmatch(name))]
    if asked is None:
        return []
    about = {"a": asked.checkpoints[0], **({"prompts": asked.prompts} if asked.prompts else {})}
    return [
        dcc.Link(
            f"try merging {pair[0]}",
            href="/whatif?"
            + urlencode(
                about
                | {"k.whatif.kind": "merge", "k.whatif.layer": pair[1]}
                | {"k.whatif.expert": pair[2], "k.whatif.second": pair[3]},
                safe="/",
            ),
            className="link",
        )
        for pair in found
    ]


def _facts(panel: Panel) -> list[str]:
    source = str(panel.measure.get("source") or "")
    if not panel.sides:
        return [t for t in (str(panel.measure.get("unit") or ""), source) if t]
    answer = panel.sides[0].answer
    tokens = f"{answer.tokens:,} tokens, {answer.prompts:,} prompts" if answer.tokens else "reads weights only"
    interval = (
        f"interval: {answer.interval.level:.0%}, {answer.interval.how}"
        if answer.interval
        else f"no interval: {answer.interval_reason}"
    )
    own = [*_own(panel), *_of_series(panel)]
    return [t for t in (answer.unit, tokens, _names(panel), interval, *own, source) if t]


def _own(panel: Panel) -> list[str]:
    """The facts of the one answer; of several differences only those that tell of chance, each with its letter."""
    if panel.place.sides not in ("one", "both", "steps"):
        return []
    several = panel.place.sides == "both" and len(panel.sides) > 1
    return [
        f"{side.role.upper() + ': ' if several else ''}{name.replace('_', ' ')} {_fact(value)}"
        for side in (panel.sides if several else panel.sides[:1])
        for name, value in list(side.answer.facts.items())[: None if several else FACTS]
        if not several or _OF_CHANCE.search(name)
    ]


def _fact(value: int | float | str) -> str:
    return words.number(float(value)) if isinstance(value, int | float) else value


def _names(panel: Panel) -> str:
    if panel.place.sides == "runs":
        return f"{len({s.label for s in panel.sides})} runs, hollow: step 0; soft and dense runs choose nothing"
    if panel.place.sides == "series":
        return f"A {panel.asked[0].question.checkpoints[0].rsplit('/', 1)[0]}, {len(panel.sides)} steps"
    named = (f"{s.role.upper()} {s.label}" if s.role in LETTERS else s.label for s in panel.sides)
    return " | ".join(dict.fromkeys(named))


def _of_series(panel: Panel) -> list[str]:
    if panel.place.sides != "series" or panel.sides[0].answer.values.ndim != 3:
        return []
    return [
        "whiskers and band: mean of the pairs' bounds, as wide as the mean's own or wider; none if a pair lacks one"
    ]


def _null_fact(answer: Answer) -> html.Span:
    if answer.null is None:
        return html.Span(f"no null: {answer.null_reason}", className="fact")
    return html.Span(
        [
            html.Span(className="glyph g-null", **hyphened({"aria-hidden": "true"})),
            html.Span(f"null: {answer.null.how}"),
        ],
        className="fact",
    )
