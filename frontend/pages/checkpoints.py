"""What is loaded: runs with their steps, the facts of each checkpoint, and how to add one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from frontend import words
from frontend.attributes import hyphened
from frontend.client import Client
from frontend.pages import traceform
from frontend.pages.head import page
from frontend.panel import icon, plain_plate
from frontend.state import Material, PageState, place


async def layout(client: Client, state: PageState, material: Material) -> list:
    """Runs with steps as buttons (a click sets A, with shift B), and the forms to register and to import."""
    count, runs = len(material.checkpoints), len({c.get("run") for c in material.checkpoints if c.get("run")})
    table = plain_plate(
        "Runs",
        [_table(material, state)],
        8,
        "A click on a step makes it A, a click with shift makes it B.",
        (f"{count} checkpoints", f"{runs} runs", "headers read only; weights load when a question needs them"),
    )
    forms = [_register(), _register_run(), traceform.form(await client.trace_formats(), material)]
    side = html.Div([*forms, html.Div(id="facts-of-a")], className="span-4 stack")
    return page(
        "Checkpoints",
        "The models every figure is about: a folder of safetensors with its config, or a hub id.",
        [table, side],
    )


def _table(material: Material, state: PageState) -> html.Div:
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for c in material.checkpoints:
        runs.setdefault(c.get("run") or c["id"], []).append(c)
    head = html.Tr([html.Th(t) for t in ("run", "router", "layers × experts", "parameters", "steps")])
    rows = [_row(run, sorted(members, key=place), state) for run, members in runs.items()]
    return html.Div(
        html.Table([html.Thead(head), html.Tbody(rows)], className="facts-table runs-table"), className="scroll-x"
    )


def _row(run: str, members: list[Mapping[str, Any]], state: PageState) -> html.Tr:
    last = members[-1]
    if last.get("error"):
        return html.Tr([html.Th(run, scope="row"), html.Td(html.Span(last["error"], className="error"), colSpan=4)])
    steps = [
        html.Button(
            words.step_of(c) if c.get("run") else "use",
            type="button",
            className="step-button" + (" is-a" if c["id"] == state.a else " is-b" if c["id"] == state.b else ""),
            **hyphened(
                {
                    "data-parameter": "a",
                    "data-shift": "b",
                    "data-value": c["id"],
                    "aria-label": f"{run} step {c.get('step')}",
                    "aria-pressed": str(c["id"] == state.a).lower(),
                }
            ),
        )
        for c in members
    ]
    made = ", random weights" if last.get("random_weights") else ""
    cells = [words.router(last) + made, words.shape(last), f"{last.get('parameters') or 0:,}"]
    return html.Tr(
        [html.Th(run, scope="row"), *(html.Td(c) for c in cells), html.Td(html.Div(steps, className="steps"))]
    )


def _register() -> html.Section:
    entry = dcc.Input(
        id="register-source",
        type="text",
        placeholder="/models/my-moe or owner/name",
        className="entry wide",
        debounce=False,
    )
    form = html.Div(
        [
            html.Label([html.Span("Path or hub id"), entry], className="field column"),
            html.Button("Register", id="register-go", type="button", className="primary"),
        ],
        className="form",
    )
    return plain_plate(
        "Register",
        [form, html.Div(id="register-told", role="status")],
        reading="Only config and safetensors headers are read; a pickle is refused.",
    )


def _register_run() -> html.Section:
    entry = dcc.Textarea(
        id="run-sources",
        placeholder="owner/name@step1000-tokens4B\nowner/name@step2000-tokens8B",
        className="entry-lines",
    )
    name = dcc.Input(id="run-name", type="text", placeholder="as the folder or repository", className="entry wide")
    form = html.Div(
        [
            html.Label([html.Span("Steps, one a line, or a folder of steps"), entry], className="field column"),
            html.Label([html.Span("Name"), name], className="field column"),
            html.Button("Register run", id="run-go", type="button", className="primary"),
        ],
        className="form",
    )
    return plain_plate(
        "Register a run",
        [form, html.Div(id="run-told", role="status")],
        reading="Names like step1000-tokens4B, iter_0001000, global_step100 or checkpoint-500 say the order; revisions "
        "are pinned to their commits.",
    )


def told(text: str, wrong: bool = False) -> html.Div:
    """What came of registering."""
    return (
        html.Div([icon("alert"), html.Span(text)], className="trouble")
        if wrong
        else html.Div(text, className="t-body ink-2")
    )


def _adapter(c: Mapping[str, Any]) -> str:
    if c.get("trace"):
        return f"none: a trace of the prompts {c.get('prompts')}, which decides {', '.join(c.get('statistics', ()))}"
    return f"{c.get('adapter')}, {'verified' if c.get('verified') else 'not yet verified'}"


def _dtype(c: Mapping[str, Any]) -> str:
    stored, held = c.get("dtype"), c.get("precision")
    return f"{stored}, held in {held}" if held and held != stored else str(stored)


def _weights(c: Mapping[str, Any]) -> str:
    size = words.size(float(c.get("weight_bytes") or 0))
    return size if c.get("fetched", True) else f"{size} on the hub, fetched by the first question that reads them"


FACTS = (
    ("id", lambda c: c["id"]),
    ("architecture", lambda c: str(c.get("architecture"))),
    ("router", words.router),
    ("layers × experts", words.shape),
    ("model, expert width", lambda c: f"{c.get('model')}, {c.get('hidden')}"),
    ("parameters", lambda c: f"{c.get('parameters') or 0:,}"),
    ("dtype", lambda c: _dtype(c)),
    ("weights", lambda c: _weights(c)),
    ("memory, estimated", lambda c: words.size(float(c.get("memory_bytes") or 0))),
    ("adapter", lambda c: _adapter(c)),
    ("fingerprint", lambda c: str(c.get("fingerprint"))[:16]),
    ("source", lambda c: str(c.get("source"))),
)


def facts(name: str | None, material: Material) -> html.Section | list:
    """Everything known of one checkpoint without loading it."""
    own = material.checkpoint(name)
    if own is None:
        return []
    rows = [html.Tr([html.Th(label, scope="row"), html.Td(read(own), className="wrap")]) for label, read in FACTS]
    return plain_plate(f"A: {words.checkpoint(own)}", [html.Table(html.Tbody(rows), className="facts-table")])
