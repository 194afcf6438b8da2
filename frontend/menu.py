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
        series = panel.place.sides == "series"
        key = " ".join(s.answer.key for s in panel.sides) if series else panel.sides[0].answer.key
        lines += [_act("table", "As a table", "table", "v", **hyphened({"data-answer": key})), html.Hr()]
        lines += [html.Div([_act("down", "PNG", "png"), _act("", "SVG", "svg")], className="menu-pair")]
        files = [
            html.A(
                name.upper() if name == "csv" else name,
                href=f"/api/v1/questions/{quote(key)}?format={name}",
                download="",
                className="menu-line",
            )
            for name in ("csv", "parquet", "npy")
        ]
        # A series is many answers: its table has them all, and the command line asks for each.
        lines += [html.Hr()] if series else [html.Div(files, className="menu-pair"), html.Hr()]
    if settings:
        lines += [html.Div(list(settings), className="menu-settings"), html.Hr()]
    if panel.asked:
        lines += [_code("Python", _python(panel)), _code("Command line", _command(panel))]
    return lines


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
    asked = panel.asked if panel.place.sides == "series" else panel.asked[:1]
    return "\n".join(_line(one.question) for one in asked)


def _line(question: Question) -> str:
    line = "moe-geometry ask " + " ".join(f"--checkpoint {c}" for c in question.checkpoints)
    line += f" --prompts {question.prompts}" if question.prompts else ""
    line += f" --measure {question.measure}"
    return line + "".join(f" --knob {k}={v}" for k, v in question.knobs.items()) + " --format json"
