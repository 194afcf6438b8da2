"""What differs between A and B as facts; rows that are equal are folded away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from frontend import words
from frontend.panel import plain_plate
from frontend.state import Material

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
    """The slot; it follows A and B of the URL."""
    return html.Div(id="differs", className="slot span-12")


def table(a: str | None, b: str | None, material: Material) -> html.Section:
    """The facts of both, differences first and alone."""
    left, right = material.checkpoint(a), material.checkpoint(b)
    if left is None or right is None:
        return plain_plate("What differs", [html.P("Choose two checkpoints in the bar above.", className="ink-2")])
    told = [(name, read(left), read(right)) for name, read in FACTS]
    rows = [html.Tr([html.Th(name, scope="row"), html.Td(x), html.Td(y)]) for name, x, y in told if x != y]
    equal = [name for name, x, y in told if x == y]
    body = html.Table(
        [html.Thead(html.Tr([html.Th("fact"), _head("a", left), _head("b", right)])), html.Tbody(rows)],
        className="facts-table",
    )
    reading = f"{len(rows)} of {len(told)} facts differ." + (f" Equal: {', '.join(equal)}." if equal else "")
    return plain_plate("What differs", [body], reading=reading)


def _head(letter: str, checkpoint: Mapping[str, Any]) -> html.Th:
    return html.Th([html.Span(letter.upper(), className=f"letter {letter}"), words.checkpoint(checkpoint)])
