"""The form that brings routes or counts made elsewhere: a file, a name, and what the file may leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from frontend import words
from frontend.attributes import hyphened
from frontend.panel import icon, plain_plate
from frontend.state import Material

NUMBERS = {
    "k": ("k: experts a token chooses", "8"),
    "experts": ("experts: routed experts a layer", "64"),
    "layers": ("layers: those that have experts, from 0", "3-60, or 1,3,5"),
    "window": ("window: tokens of a prompt, of a stream", "512"),
}
"""Label and example of each field that is typed; the names are those of `moe-geometry import`."""
FIELDS = (*NUMBERS, "format", "prompts")
"""Everything that the backend may ask for beside the file."""
READING = (
    "Count matrices, routed experts of vLLM and SGLang, FLAME-MoE's layers, importance matrices, our own export: what "
    "the file leaves open is asked, and nothing is guessed. No pickle is opened."
)


def form(formats: Sequence[Mapping[str, Any]], material: Material) -> html.Section:
    """The plate; the browser sends the fields with the file as multipart, never through a callback."""
    known = [(each["name"], f"{each['name']}: {each['title']}") for each in formats]
    sets = [(each["name"], each["name"]) for each in material.prompts]
    asked = [
        *(_typed(name) for name in NUMBERS),
        _chosen("format", "format: what the file is", "as the file looks", known),
        _chosen("prompts", "prompts: the set that its prompts are of, by id", "its own, without texts", sets),
    ]
    head = html.Summary("What the file may leave open", className="small-button")
    parts = [
        _face(),
        _labelled("name", "Name", _entry("name", "as the file")),
        html.Details([head, html.Div(asked, className="form")], id="trace-open", className="trace-open"),
        html.Button("Import", type="submit", className="primary"),
    ]
    body = [html.Form(parts, id="trace-form", className="form"), html.Div(id="trace-told", role="status")]
    return plain_plate("Import a trace", body, reading=READING)


def _face() -> html.Button:
    kinds = html.Div(".npy .npz .json .jsonl .csv .parquet .gguf · up to 64 MiB", className="t-note ink-3")
    say = html.Div([html.B("Drop a trace, or click to choose", id="trace-file"), kinds])
    marks = hyphened({"data-act": "choose-trace", "data-drop": "trace"})
    return html.Button([icon("up"), say], type="button", className="drop wide", **marks)


def _typed(name: str) -> html.Label:
    label, example = NUMBERS[name]
    return _labelled(name, label, _entry(name, example))


def _entry(name: str, placeholder: str) -> dcc.Input:
    return dcc.Input(
        id=f"trace-{name}", name=name, type="text", placeholder=placeholder, autoComplete="off", className="entry wide"
    )


def _chosen(name: str, label: str, none: str, choices: Sequence[tuple[str, str]]) -> html.Label:
    options = [html.Option(text, value=value) for value, text in (("", none), *choices)]
    return _labelled(name, label, html.Select(options, name=name, className="entry-choice"))


def _labelled(name: str, label: str, entry: Any) -> html.Label:
    return html.Label([html.Span(label), entry], id=f"trace-field-{name}", className=field(name, None))


def field(name: str, asks: str | None) -> str:
    """The class of a field; the one that the backend asks for is marked."""
    return "field column" + (" asked" if name == asks else "")


def told(report: Mapping[str, Any] | None) -> list:
    """What came of it: the backend's sentence, or what was kept, with all that the import says of itself."""
    if not report:
        return []
    if report.get("error"):
        return [html.Div([icon("alert"), html.Span(report["error"])], className="trouble", role="alert")]
    kept = report["kept"]
    sentence = (
        f"{kept['id']} is imported ({kept['trace']}): {words.shape(kept)}. It decides {', '.join(kept['statistics'])}; "
        f"it is A now, on its prompts {kept['prompts']}."
    )
    notes = [html.Li(note) for note in kept.get("notes", ())]
    return [html.Div(sentence, className="t-body ink"), html.Ul(notes, className="t-note ink-2")]
