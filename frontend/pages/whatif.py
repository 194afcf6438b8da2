"""What if: an edit of checkpoint A, tried at once, beside the untouched model and the same edit of random experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from frontend.attributes import hyphened
from frontend.client import Client
from frontend.pages import pruneplan
from frontend.pages.head import page
from frontend.panel import icon, plain_plate
from frontend.state import Material, PageState

LEAD = "Switch an expert of A off, force one on, merge two, take the routers of B, change k; and see what it costs."
KINDS = (("off", "off"), ("on", "forced on"), ("merge", "merge"), ("routers", "routers of B"), ("topk", "k"))
FIELDS = {
    "layer": ("Layer", ("off", "on", "merge")),
    "expert": ("Expert", ("off", "on", "merge")),
    "second": ("Second expert", ("merge",)),
    "k": ("k", ("topk",)),
}
"""Each field of the form, and the kinds of edit that read it."""
NOTHING_KEPT = "Nothing of this is kept: the model is put back after each batch, and a result lives on this page alone."


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The form, filled from the link that led here, and where the result will stand."""
    kind = state.knobs.get("whatif.kind", "off")
    kind = kind if kind in dict(KINDS) else "off"
    given = {name: state.knobs.get(f"whatif.{name}", default) for name, default in _defaults().items()}
    choose = dmc.SegmentedControl(
        id="whatif-kind",
        data=[{"value": value, "label": label} for value, label in KINDS],  # pyright: ignore[reportArgumentType]
        value=kind,
        **hyphened({"aria-label": "Edit"}),
    )
    fields = [_field(name, given[name], kind) for name in FIELDS]
    go = html.Button([icon("play"), "Try it"], id="whatif-go", type="button", className="small-button")
    form = html.Div([choose, *fields, go], className="whatif-form")
    told = html.Div(id="whatif-told", role="status", className="t-note ink-2")
    edit = plain_plate("Edit", [form, told], notes=(NOTHING_KEPT, "five random edits of the same kind, same layer"))
    found, planned = (html.Div(id=f"{name}-result", className="grid whatif-result") for name in ("whatif", "prune"))
    return [*page("What if", LEAD, [edit]), found, html.Div(pruneplan.form(), className="whatif-result"), planned]


def _defaults() -> dict[str, str]:
    return {"layer": "0", "expert": "0", "second": "1", "k": "1"}


def _field(name: str, value: str, kind: str) -> html.Label:
    entry = dcc.Input(id=f"whatif-{name}", type="text", value=value, className="entry", debounce=False)
    return html.Label(
        [html.Span(FIELDS[name][0]), entry], id=f"whatif-field-{name}", className="field", style=shown(name, kind)
    )


def shown(name: str, kind: str) -> dict[str, str]:
    """A field that this kind of edit does not read is hidden."""
    return {} if kind in FIELDS[name][1] else {"display": "none"}


def spec(kind: str, given: Mapping[str, str | None], b: str | None) -> dict[str, Any]:
    """The edit as the API takes it; what is no number goes as it is, and the backend says what it should be."""
    if kind == "routers":
        return {"kind": kind, "checkpoint": b or ""}
    if kind == "topk":
        return {"kind": kind, "k": _number(given["k"])}
    layer, expert = (given["layer"] or "").strip(), _number(given["expert"])
    if kind == "merge":
        return {"kind": kind, "layer": layer, "first": expert, "second": _number(given["second"])}
    return {"kind": kind, "layer": layer, "expert": expert}


def result(told: Mapping[str, Any]) -> list:
    """Perplexity, routing and tokens of one edit."""
    return [_perplexity(told), _routing(told), _tokens(told)]


def refused(text: str) -> list:
    """The backend's sentence."""
    return [html.Div([icon("alert"), html.Span(text)], className="trouble span-12", role="alert")]


def _perplexity(told: Mapping[str, Any]) -> html.Section:
    rows = told["perplexity"]
    ends = _ends([v for row in rows for v in (*_band(row["change"]), *row["random"])])
    names = ("prompts", "tokens", "before", "after", "ln ratio", "95 % interval", "random edits", "")
    body = [
        [
            row["category"],
            f"{row['prompts']:,}",
            f"{row['tokens']:,}",
            _short(row["before"], 2),
            _short(row["after"], 2),
            f"{row['change']['value']:+.4f}",
            _interval(row["change"]),
            _range(row["random"], "+.4f"),
            _strip(row["change"]["value"], _band(row["change"]), row["random"], ends, f"{row['category']}, ln ratio"),
        ]
        for row in rows
    ]
    notes = [
        "perplexity; its ln ratio is the change of loss in nats a token",
        "interval: delete-one-block jackknife over prompts, paired with the untouched model",
        _chance(told),
        f"{told['checkpoint']}, {told['prompt_set']}, {told['tokens']:,} tokens, {told['seconds']:.1f} s",
        *(["random weights, never trained"] if told["random_weights"] else []),
        *told["notes"],
    ]
    return plain_plate("Perplexity", [_table(("category", *names), body)], 12, _reading(told), notes)


def _reading(told: Mapping[str, Any]) -> str:
    row = told["perplexity"][0]
    change, chance = row["change"], row["random"]
    text = f"{told['told'][:1].upper()}{told['told'][1:]}: perplexity {_short(row['before'], 2)} becomes "
    text += f"{_short(row['after'], 2)}. "
    if chance:
        less = sum(value < change["value"] for value in chance)
        text += f"{less} of {len(chance)} random edits cost less. "
    saved = told["saved"]
    if saved:
        text += f"A layout made for it would save {saved['parameters']:,} parameters; this model keeps its size."
    return text


def _chance(told: Mapping[str, Any]) -> str:
    edits = told["random"]["edits"]
    return f"random edits: {'; '.join(edits)}" if edits else f"no random edits: {told['random']['reason'] or 'none'}"


def _routing(told: Mapping[str, Any]) -> html.Section:
    rows = told["routing"]
    known = [v for row in rows for v in (row["changed"], *row["random"]) if v is not None]
    ends = (0.0, max([*known, 1e-9]))
    body = [
        [
            row["layer"],
            _short(row["changed"], 3),
            _range([v for v in row["random"] if v is not None], ".3f"),
            _strip(row["changed"], (), row["random"], ends, f"layer {row['layer']}, share of selections changed"),
        ]
        for row in rows
    ]
    table = _table(("layer", "changed", "random edits", ""), body)
    notes = ("share of selections that only one of the two models made (0 to 1)", "no interval: told as counted")
    return plain_plate("Routing", [table], 5, "The share of selections that changed, layer by layer.", notes)


def _tokens(told: Mapping[str, Any]) -> html.Section:
    moved = told["tokens_changed"]
    names = ("prompt", "token", "next in the text", "predicted before", "and after", "change of loss")
    body = [
        [
            each["prompt"],
            html.Code(each["piece"]),
            html.Code(each["following"]) if each["following"] is not None else "end",
            html.Code(each["before"]),
            html.Code(each["after"]),
            "" if each["loss_change"] is None else f"{each['loss_change']:+.3f}",
        ]
        for each in moved["shown"]
    ]
    words = f"After {moved['count']:,} of {moved['of']:,} tokens another one is likeliest."
    table = html.Div(
        _table(names, body),
        className="scroll-y",
        tabIndex="0",
        role="region",
        **hyphened({"aria-label": "List of changed tokens"}),
    )
    notes = (f"{len(moved['shown'])} with the largest change of the next token's loss", "loss in nats")
    return plain_plate("Tokens that changed", [table], 7, words, notes)


def _table(names: Sequence[str], body: Sequence[Sequence[Any]]) -> html.Table:
    head = html.Thead(html.Tr([html.Th(name, scope="col") if name else html.Td() for name in names]))
    rows = [
        html.Tr([html.Th(row[0], scope="row"), *(html.Td(cell, className="num") for cell in row[1:])]) for row in body
    ]
    return html.Table([head, html.Tbody(rows)], className="facts-table")


def _strip(
    value: float | None, band: Sequence[float], chance: Sequence[Any], ends: tuple[float, float], what: str
) -> Any:
    """A value on a line with its interval, random edits as ticks: drawn in elements, so that it follows the theme."""
    low, high = ends
    if value is None or high <= low:
        return ""
    at = lambda v: f"{100 * (v - low) / (high - low):.2f}%"  # noqa: E731
    parts = [html.Span(className="strip-tick", style={"left": at(v)}) for v in chance if v is not None]
    if low < 0 < high:
        parts.append(html.Span(className="strip-zero", style={"left": at(0)}))
    if band:
        width = f"{100 * (band[1] - band[0]) / (high - low):.2f}%"
        parts.append(html.Span(className="strip-band", style={"left": at(band[0]), "width": width}))
    parts.append(html.Span(className="strip-dot", style={"left": at(value)}))
    label = f"{what}: {value:.4f}; random edits as ticks"
    return html.Div(parts, className="whatif-strip", role="img", **hyphened({"aria-label": label}))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(0.0, *values), max(0.0, *values)
    pad = 0.04 * (high - low)
    return low - pad, high + pad


def _band(change: Mapping[str, Any]) -> tuple[float, ...]:
    return () if change["low"] is None else (change["low"], change["high"])


def _interval(change: Mapping[str, Any]) -> str:
    band = _band(change)
    return f"{band[0]:+.4f} to {band[1]:+.4f}" if band else f"none: {change['reason']}"


def _range(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}" if values else "none"


def _short(value: float | None, digits: int) -> str:
    return "no data" if value is None else f"{value:,.{digits}f}"


def _number(text: str | None) -> int | str:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdecimal() else stripped
