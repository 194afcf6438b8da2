"""What differs between those compared as facts; rows that are equal are folded away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from frontend import words
from frontend.panel import plain_plate
from frontend.state import Material, PageState

FACTS = (
    ("router", words.router),
    ("step", lambda c: words.step(c.get("step"))),
    ("layers × experts", words.shape),
    ("model width", lambda c: str(c.get("model"))),
    ("expert width", lambda c: str(c.get("hidden"))),
    ("parameters", lambda c: f"{c.get('parameters') or 0:,}"),
    ("dtype", lambda c: str(c.get("dtype"))),
    ("architecture", lambda c: str(c.get("architecture"))),
    ("fingerprint", lambda c: str(c.get("fingerprint"))[:12]),
)


def differs() -> html.Div:
    """The slot; it follows the checkpoints of the URL."""
    return html.Div(id="differs", className="slot span-12")


def table(state: PageState, material: Material) -> html.Section:
    """The facts of all, differences first and alone."""
    found = [(letter, own) for letter, name in state.compared if (own := material.checkpoint(name)) is not None]
    if len(found) < 2:
        return plain_plate("What differs", [html.P("Choose two checkpoints in the bar above.", className="ink-2")])
    told = [(name, [read(own) for _, own in found]) for name, read in FACTS]
    rows = [html.Tr([html.Th(name, scope="row"), *map(html.Td, each)]) for name, each in told if len(set(each)) > 1]
    equal = [name for name, each in told if len(set(each)) == 1]
    heads = [_head(letter, own) for letter, own in found]
    body = html.Table(
        [html.Thead(html.Tr([html.Th("fact"), *heads])), html.Tbody(rows)],
        className="facts-table",
    )
    reading = f"{len(rows)} of {len(told)} facts differ." + (f" Equal: {', '.join(equal)}." if equal else "")
    return plain_plate("What differs", [body], reading=reading)


def _head(letter: str, checkpoint: Mapping[str, Any]) -> html.Th:
    return html.Th([html.Span(letter.upper(), className=f"letter {letter}"), words.checkpoint(checkpoint)])
