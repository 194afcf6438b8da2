"""Prompt sets: what is loaded, and a new file row by row before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from frontend import words
from frontend.attributes import hyphened
from frontend.client import Client
from frontend.pages.head import page
from frontend.panel import icon, plain_plate
from frontend.state import Material, PageState

TEMPLATES = (
    (
        "template.jsonl",
        "application/jsonl",
        '{"id": "code-01", "text": "Write a function that merges two sorted lists.", "category": "code"}\n',
    ),
    ("template.csv", "text/csv", "id,text,category\ncode-01,Write a function that merges two sorted lists.,code\n"),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """Sets on the left, the drop zone and its report on the right, the chosen set's rows below."""
    listed = [_listed(p, state) for p in material.prompts]
    sets = html.Section(
        [html.Header(html.H2("Prompt sets"), className="plate-head"), html.Div(listed)],
        className="plate span-3",
        **hyphened({"aria-label": "Prompt sets"}),
    )
    upload = plain_plate("Upload", [drop_zone(), html.Div(id="upload-report")], 12)
    shown = plain_plate(f"{state.prompts}", [await _rows(client, state, material)], 12)
    return page(
        "Prompts",
        "A prompt set is what every figure is asked on. Nothing is imported until you say so.",
        [sets, html.Div([upload, shown], className="span-9 stack")],
    )


def _listed(p: Mapping[str, Any], state: PageState) -> html.Div:
    categories = ", ".join(p.get("categories") or {}) or "no categories"
    pick = html.Button(
        html.B(p["name"]),
        type="button",
        className="plain",
        **hyphened(
            {
                "data-parameter": "prompts",
                "data-value": p["name"],
                "aria-pressed": str(p["name"] == state.prompts).lower(),
            }
        ),
    )
    tail = (
        html.Span("ships", className="tag")
        if p.get("shipped")
        else html.Button(
            "Delete",
            type="button",
            className="textual",
            **hyphened({"data-act": "delete-prompts", "data-name": p["name"], "aria-label": f"Delete {p['name']}"}),
        )
    )
    use = [html.Span("in use", className="tag")] if p["name"] == state.prompts else []
    note = html.Div(f"{p['prompts']:,} prompts · {categories}", className="t-note ink-3")
    return html.Div(
        [html.Div([pick, html.Span(className="grow"), *use, tail], className="row"), note], className="listed"
    )


def drop_zone() -> html.Div:
    """Drop a file or choose one; the browser sends it as multipart, never through a callback."""
    links = [
        html.A(name, href=f"data:{kind};charset=utf-8,{_quoted(text)}", download=name, className="link")
        for name, kind, text in TEMPLATES
    ]
    say = html.Div(
        [
            html.B("Drop a file, or click to choose"),
            html.Div(
                "JSONL, CSV or TXT, UTF-8 · column text, optional id and category · up to 64 MiB",
                className="t-note ink-3",
            ),
        ]
    )
    face = html.Button(
        [icon("up"), say],
        type="button",
        className="drop wide",
        **hyphened({"data-act": "choose-file", "data-drop": "prompts"}),
    )
    return html.Div(
        [face, html.Div(links, className="row t-note templates"), html.Div(id="upload-told", role="status")],
        className="drop-field",
    )


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text)


async def _rows(client: Client, state: PageState, material: Material) -> html.Div:
    if material.prompt_set(state.prompts) is None:
        return html.Div("No prompt set of this name is loaded.", className="ink-2")
    told = await client.prompt_rows(str(state.prompts), 30)
    rows = [
        html.Tr(
            [
                html.Td(r["id"], className="mono"),
                html.Td(r["category"], className="cell-cat"),
                html.Td(_short(r["text"])),
            ]
        )
        for r in told["rows"]
    ]
    head = html.Thead(html.Tr([html.Th("id"), html.Th("category"), html.Th("text")]))
    note = html.Div(f"first {len(rows)} of {told['prompts']:,}", className="t-note ink-3")
    return html.Div([html.Table([head, html.Tbody(rows)], className="facts-table set-rows"), note])


def report(told: Mapping[str, Any]) -> list:
    """What a file holds, row by row: good, mended, refused; and the button that imports it."""
    if told.get("error"):
        return [html.Div([icon("alert"), html.Span(told["error"])], className="trouble", role="alert")]
    if told.get("imported"):
        return [
            html.Div(
                f"{told['imported']} is imported: {told['prompts']:,} prompts.", className="t-body ink", role="status"
            )
        ]
    counts = [
        html.Span([html.B(f"{told[k]:,}", className="num"), f" {name}"], className=tone)
        for k, name, tone in (
            ("rows", "rows", ""),
            ("good", "good", ""),
            ("mended", "mended", "warn"),
            ("refused", "refused", "error"),
        )
    ]
    usable = told["good"] + told["mended"]
    name = html.Div(
        [
            html.B(told["name"]),
            html.Div(f"{words.size(told.get('bytes', 0))}, {told['format'].upper()}, UTF-8", className="t-note ink-3"),
        ]
    )
    go = html.Button(
        f"Import {usable:,} rows", type="button", className="primary", **hyphened({"data-act": "import-file"})
    )
    head = html.Div(
        [name, html.Div(counts, className="counts"), html.Span(className="grow"), go], className="row report"
    )
    return [head, _preview(told)]


def _preview(told: Mapping[str, Any]) -> html.Div:
    problems: dict[int, list[Mapping[str, Any]]] = {}
    for p in told["problems"]:
        problems.setdefault(p["row"], []).append(p)
    rows = [_preview_row(r, problems.get(r["row"], [])) for r in told["preview"]]
    head = html.Thead(html.Tr([html.Th(t) for t in ("row", "id", "category", "text")]))
    note = html.Div(
        f"{len(rows):,} of {told['rows']:,} rows shown, every row with a problem first among them",
        className="t-note ink-3",
    )
    return html.Div(
        [html.Table([head, html.Tbody(rows)], className="facts-table preview"), note],
        className="scroll-y",
        tabIndex="0",
        role="region",
        **hyphened({"aria-label": "Preview of the file"}),
    )


def _preview_row(row: Mapping[str, Any], problems: list[Mapping[str, Any]]) -> html.Tr:
    tone = {"refused": "error", "mended": "warn"}.get(row.get("state", ""), "")
    notes = [
        html.Div(
            [icon("alert"), html.Span(p["message"])],
            className=f"row-note {'error' if p['severity'] == 'refused' else 'warn'}",
        )
        for p in problems
    ]
    cells = [
        html.Td(str(row["row"]), className="num ink-3"),
        html.Td(str(row.get("id") or "–"), className="mono"),
        html.Td(str(row.get("category") or "–"), className="cell-cat"),
    ]
    return html.Tr(
        [*cells, html.Td([html.Span(_short(str(row.get("text") or "–")), className="clip-text"), *notes])],
        className=f"r-{tone}" if tone else "",
    )


def _short(text: str, most: int = 160) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
