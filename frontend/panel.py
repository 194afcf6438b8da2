"""The plate: the one frame of every figure, in every state: title, knobs, menu; one sentence; figure; footer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dash import html

from frontend import controls, theme, words
from frontend.attributes import hyphened
from frontend.client import Job
from frontend.folded import told
from frontend.footer import foot
from frontend.menu import menu
from frontend.places import Asked, Place
from frontend.readings import caution, sentence, sentence_of_runs, sentence_of_series
from frontend.scales import Scale
from frontend.views import Side

_LAID = count()
HEAD = 7
"""Letters of knobs that a head holds beside its title, for each of the page's twelve columns."""
GRAPH: Any = {
    "displaylogo": False,
    "showSendToCloud": False,
    "displayModeBar": False,
    "scrollZoom": False,
    "doubleClick": "reset",
}
"""How every figure behaves in the browser."""


@dataclass(frozen=True)
class Panel:
    """Everything a plate shows of one place, whatever its state.

    `state` is loading, not-asked, running, partial, done, refused or failed.
    """

    place: Place
    measure: Mapping[str, Any]
    state: str
    sides: tuple[Side, ...] = ()
    scale: Scale | None = None
    height: int = 240
    asked: tuple[Asked, ...] = ()
    cost: Mapping[str, Any] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    message: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    old: bool = False
    missing: bool = False
    again: bool = False
    filtered: str = ""

    def controls(self) -> list:
        """Its knobs as widgets: the first in the head, the rest under the menu."""
        return controls.knobs(self.measure, self.knobs, self.place.knobs) if self.measure else []

    @property
    def in_head(self) -> int:
        """So many knobs stand in the head; more would push the title away, or the menu onto a line of its own."""
        told = [k for k in self.measure.get("knobs", ()) if k["name"] not in self.place.knobs][:2]
        width = sum(len(str(c)) + 2 for k in told for c in k["choices"] or (k["name"],))
        return 1 if self.place.span < 6 or width > HEAD * self.place.span else 2

    @property
    def title(self) -> str:
        """The page's own title, else the catalogue's."""
        return self.place.title or str(self.measure.get("title") or self.place.measure)


def icon(name: str) -> html.Span:
    """An icon as a mask that takes the colour of the text."""
    return html.Span(className=f"icon i-{name}", **hyphened({"aria-hidden": "true"}))


def slot(place: Place, content: Mapping[str, Any] | None = None) -> html.Div:
    """What a page puts down: one component, whose plate `assets/panels.js` makes; loading where there is no content."""
    face = content or {"plate": plate(Panel(place, {}, "loading"))}
    laid = {"data-place": told(place.stored()), "data-panel": told(face)}
    laid["data-laid"] = str(next(_LAID))  # a page laid anew with the same words must not keep the plates it had
    return html.Div(id={"type": "slot", "key": place.key}, className=f"slot span-{place.span}", **hyphened(laid))


def plate(panel: Panel) -> html.Section:
    """The frame. Its attributes say which measure it holds and in which state it is."""
    tag = {"partial": html.Span("partial", className="tag warn")}.get(panel.state)
    if panel.old:
        tag = html.Span("old answer", className="tag error")
    head = html.Header(
        [
            html.H2(panel.title),
            *([tag] if tag else []),
            html.Div(
                panel.controls()[: panel.in_head],
                className="knobs",
            ),
            *([menu(panel, panel.controls()[panel.in_head :])] if panel.measure else []),
        ],
        className="plate-head",
    )
    return html.Section(
        [
            head,
            html.P(_reading(panel), className="reading"),
            html.Div(_body(panel), className="plate-body"),
            foot(panel),
        ],
        className=f"plate is-{panel.state}",
        **hyphened(
            {
                "aria-label": panel.title,
                "data-measure": panel.place.measure,
                "data-state": panel.state,
                "data-key": panel.place.key,
                "data-jobs": json.dumps([j.id for j in panel.jobs]),
            }
        ),
    )


def _reading(panel: Panel) -> str:
    if panel.sides and not panel.old:
        told = {"runs": sentence_of_runs, "series": sentence_of_series}.get(panel.place.sides, sentence)
        return told(panel.sides)
    return str(panel.measure.get("question") or "")


def _body(panel: Panel) -> list:
    if panel.state == "loading":
        return [
            html.Div(
                className="skeleton",
                role="status",
                style={"minHeight": f"{panel.height}px"},
                **hyphened({"aria-label": "Loading", "aria-busy": "true"}),
            )
        ]
    parts: list = []
    if panel.state in ("refused", "failed"):
        parts.append(_trouble(panel))
    elif panel.message:
        parts.append(_caution(panel.message, *([_again(panel)] if panel.again else [])))
    if panel.state in ("not-asked", "running"):
        return [*parts, _blank(panel)]
    if panel.state == "partial":
        parts.append(_progress(panel))
    return parts + _drawn(panel)


def _drawn(panel: Panel) -> list:
    """The figure, the old one, or the room of one that will not come."""
    parts: list = []
    if panel.old:
        parts.append(graph(f"{panel.title}: the old answer", panel.height, old=True))
    elif panel.sides:
        if told := caution(panel.sides[0].answer):
            parts.append(_caution(told))
        if panel.filtered:
            parts.append(html.Div(panel.filtered, className="filtered t-note ink-2"))
        if panel.scale is not None:
            parts.append(_scale(panel.scale))
        parts.append(graph(f"{panel.title}: {_reading(panel)}", panel.height))
    elif panel.state in ("refused", "failed"):
        parts.append(html.Div(className="nothing", style={"minHeight": "40px"}))
    return parts


def _caution(told: str, *more: html.Button) -> html.Div:
    return html.Div([icon("alert"), html.Span(told), html.Span(className="grow"), *more], className="caution")


def graph(alt: str, height: int, old: bool = False, **more: Any) -> html.Div:
    """The figure's frame; `assets/figures.js` draws the figure in it."""
    return html.Div(
        role="img",
        className="figure greyed" if old else "figure",
        style={"flexBasis": f"{height}px", "minHeight": f"{height}px"},
        **hyphened({"aria-label": alt}),
        **more,
    )


def _scale(scale: Scale) -> html.Div:
    span = scale.high - scale.low
    marks = []
    for value, text in scale.ticks:
        at = (value - scale.low) / span if span else 0.0
        side = "start" if at <= 0.02 else "end" if at >= 0.98 else ""
        marks.append(html.Span(text, style={"left": f"{at * 100:.1f}%"}, className=side))
    bar = html.Div(className="scale-ramp", style={"background": theme.css_gradient(list(scale.stops))})
    note = html.Span("log₂ colour", className="scale-note") if scale.log else None
    parts = [
        html.Span(scale.title, className="scale-title"),
        html.Div([bar, html.Div(marks, className="scale-ticks")]),
        *([note] if note else []),
    ]
    return html.Div(parts, className="scale")


def _blank(panel: Panel) -> html.Div:
    style = {"minHeight": f"{panel.height}px"}
    if panel.state == "running":
        return html.Div(_progress(panel), className="blank", style=style)
    names = " and ".join(dict.fromkeys(a.label for a in panel.asked))
    sets = {a.question.prompts for a in panel.asked} - {None}
    what = f"{panel.title} of {_short(names)}" + (
        f" on {', '.join(sorted(map(str, sets)))}" if sets else ", from weights alone"
    )
    button = html.Button(
        "Ask", type="button", className="primary", **hyphened({"data-act": "ask", "aria-label": f"Ask {panel.title}"})
    )
    return html.Div(
        [html.B("Not asked yet"), html.P(f"{what}. {price(panel.cost)}"), button], className="blank", style=style
    )


def _short(names: str) -> str:
    return names if len(names) < 60 else f"{names.count(' and ') + 1} checkpoints"


def price(cost: Mapping[str, Any]) -> str:
    """What asking takes, as far as it is known."""
    passes, tokens = cost.get("passes") or 0, cost.get("tokens") or 0
    reads = f"Reads {tokens:,} tokens" if passes else "Needs no model run"
    told = [f"fetches {words.size(float(cost['download_bytes']))} first"] if cost.get("download_bytes") else []
    told += [f"about {words.seconds(float(cost['seconds']))}"] if cost.get("seconds") else []
    told += [words.size(float(cost["memory_bytes"]))] if cost.get("memory_bytes") else []
    return reads + (": " + ", ".join(told) if told else "") + "."


def _progress(panel: Panel) -> html.Div:
    first = panel.jobs[0] if panel.jobs else None
    count = f" · {len(panel.jobs)} jobs" if len(panel.jobs) > 1 else ""
    cancel = html.Button(
        "Cancel",
        type="button",
        className="textual",
        **hyphened({"data-act": "cancel", "aria-label": f"Cancel {panel.title}"}),
    )
    return html.Div(
        [
            html.Div(
                [html.B("Working"), html.Span(count, className="ink-3"), html.Span(className="grow"), cancel],
                className="row",
            ),
            html.Div(
                first.stage if first and first.stage else "waiting for the worker",
                className="t-note ink-2",
                **hyphened({"data-told": "stage"}),
            ),
            html.Progress(
                value=str(first.fraction if first else 0),
                max="1",
                **hyphened({"aria-label": f"Progress of {panel.title}"}),
            ),
            html.Div("", className="t-note ink-3", **hyphened({"data-told": "eta"})),
        ],
        className="progress",
        role="status",
    )


def _trouble(panel: Panel) -> html.Div:
    again = [_again(panel)] if panel.state == "failed" else []
    parts = [icon("alert"), html.Span(panel.message), html.Span(className="grow"), *again]
    return html.Div(parts, className="trouble", role="alert")


def _again(panel: Panel) -> html.Button:
    told = {"data-act": "ask", "aria-label": f"Ask {panel.title} again"}
    return html.Button("Ask again", type="button", className="textual", **hyphened(told))


def plain_plate(
    title: str, body: Sequence, span: int = 12, reading: str = "", notes: Sequence[str] = ()
) -> html.Section:
    """The same frame around something that is no measure: a table, a form, a list."""
    parts: list = [html.Header([html.H2(title)], className="plate-head")]
    if reading:
        parts.append(html.P(reading, className="reading"))
    parts.append(html.Div(list(body), className="plate-body"))
    if notes:
        parts.append(
            html.Footer(
                html.Div([html.Span(f, className="fact") for f in notes], className="facts"), className="plate-foot"
            )
        )
    return html.Section(parts, className=f"plate span-{span}", **hyphened({"aria-label": title}))
