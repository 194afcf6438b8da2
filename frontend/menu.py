"""The one menu of every plate: what it means, its link, its table, its files, and the code that asks the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from dash import html

from frontend.attributes import hyphened
from frontend.folded import folded

if TYPE_CHECKING:
    from frontend.client import Question
    from frontend.panel import Panel
    from frontend.views import Side

FILES = {"csv": "CSV", "parquet": "Parquet", "npy": "npy", "tex": "LaTeX"}
MOST_CELLS = 2000
"""A table of more is none; the backend refuses it."""


def menu(panel: Panel, settings: Sequence) -> html.Details:
    """The menu, with the knobs that found no room in the head.

    A native disclosure: a component library's menu puts aria-haspopup on a bare div, which axe calls critical.
    """
    summary = html.Summary(
        html.Span(className="icon i-more", **hyphened({"aria-hidden": "true"})),
        className="bare small",
        **hyphened({"aria-label": f"Menu of {panel.title}"}),
    )
    return html.Details([summary, folded(_lines(panel, settings), "menu-open")], className="menu")


def _lines(panel: Panel, settings: Sequence) -> list:
    drawn = bool(panel.sides)
    lines: list = [
        _meaning(panel),
        html.Hr(),
        _act("link", "Copy link", "copy-link", "c"),
        _act("expand", "Full size", "full", "f"),
    ]
    if drawn:
        series, shown = panel.place.sides == "series", [s for s in panel.sides if s.role != "control"] or panel.sides
        told = shown if panel.place.sides in ("series", "pair", "both") else shown[:1]
        key = " ".join(s.answer.key for s in told)
        lines += [_act("table", "As a table", "table", "v", **hyphened({"data-answer": key})), html.Hr()]
        lines += [html.Div([_act("down", "PNG", "png"), _act("", "SVG", "svg")], className="menu-pair")]
        # A series is many answers: its table has them all, and the command line asks for each.
        lines += [] if series else [_files(side, len(told) > 1) for side in told]
        lines += [html.Hr()]
    if settings:
        lines += [html.Div(list(settings), className="menu-settings"), html.Hr()]
    if panel.asked:
        lines += [_code("Python", _python(panel)), _code("Command line", _command(panel))]
    return lines


def _files(side: Side, several: bool) -> html.Div:
    """The files of one answer, under its letter where there are several."""
    kinds = [kind for kind in FILES if kind != "tex" or side.answer.values.size <= MOST_CELLS]
    links = [
        html.A(
            FILES[kind],
            href=f"/api/v1/questions/{quote(side.answer.key)}?format={kind}",
            download="",
            className="menu-line",
            **hyphened({"aria-label": f"{FILES[kind]} of {side.label}"} if several else {}),
        )
        for kind in kinds
    ]
    return html.Div([*([html.B(side.role.upper())] if several else []), *links], className="menu-pair files")


def _meaning(panel: Panel) -> html.Details:
    measure = panel.measure
    parts = [html.P(measure.get("question") or ""), html.P(f"Unit: {measure.get('unit')}.")]
    if measure.get("caveat"):
        parts.append(html.P([html.B("How not to misread it. "), measure["caveat"]]))
    if panel.sides:
        parts += [html.P(c) for c in panel.sides[0].answer.caveats if c != measure.get("caveat")]
    parts.append(html.P(f"Source: {measure.get('source')}.", className="ink-3"))
    head = html.Summary(
        [
            html.Span(className="icon i-help", **hyphened({"aria-hidden": "true"})),
            html.Span("What does this mean?"),
            html.Span(className="grow"),
            html.Kbd("h"),
        ],
        className="menu-line",
    )
    return html.Details([head, html.Div(parts, className="meaning")], className="meaning-fold")


def _act(glyph: str, text: str, act: str, key: str = "", **more: str) -> html.Button:
    parts = [html.Span(className=f"icon i-{glyph}", **hyphened({"aria-hidden": "true"}))] if glyph else []
    parts += [html.Span(text), html.Span(className="grow")]
    parts += [html.Kbd(key)] if key else []
    return html.Button(parts, type="button", className="menu-line", **hyphened({"data-act": act} | more))


def _code(title: str, code: str) -> html.Details:
    head = html.Summary(
        [html.Span(className="icon i-code", **hyphened({"aria-hidden": "true"})), html.Span(title)],
        className="menu-line",
    )
    return html.Details(
        [head, html.Pre(html.Code(code), tabIndex="0", **hyphened({"aria-label": f"{title} that asks the same"}))],
        className="code-fold",
    )


def _python(panel: Panel) -> str:
    body = panel.asked[0].question.body() | {"wait": 20}
    lines = ("import httpx", "", f"question = {body!r}", 'url = "http://127.0.0.1:8000/api/v1/questions"')
    return "\n".join((*lines, "answer = httpx.post(url, json=question, timeout=60).json()"))


def _command(panel: Panel) -> str:
    several = panel.place.sides in ("series", "pair", "both")
    asked = [one for one in panel.asked if one.role != "matching"] if several else panel.asked[:1]
    return "\n".join(_line(one.question) for one in asked)


def _line(question: Question) -> str:
    line = "moe-geometry ask " + " ".join(f"--checkpoint {c}" for c in question.checkpoints)
    line += f" --prompts {question.prompts}" if question.prompts else ""
    line += f" --measure {question.measure}"
    return line + "".join(f" --knob {k}={v}" for k, v in question.knobs.items()) + " --format json"
