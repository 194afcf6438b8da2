"""A text that is typed, through both models at once: who serves each token, layer by layer.

The page is a frame; `assets/tokens.js` asks and `assets/tokens-paint.js` paints, since a server between a key and its
answer would be felt. What is typed is only ever set as text.
"""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from frontend.attributes import hyphened
from frontend.client import Client
from frontend.pages.head import page
from frontend.panel import icon
from frontend.state import Material, PageState

LEAD = "Type, or paste: both models answer. A token's colour is the expert that weighs most in this layer."
EXAMPLE = "The determinant of a rotation is one, so the function below returns `True` for every orthogonal matrix."
GENERATED = 8
MODES = ("experts", "this expert", "agreement")
FACTS = (
    "first expert of each token and layer; hue its number after matching, depth its weight",
    "chance: two routers that know nothing of each other agree in 1 of E cells",
    "one text: no interval; nothing of it is kept",
    "source: the routes as the model took them (block law checked at its first run)",
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """Where to type, both models' tokens, and the sentence as a score."""
    parts = [_entry(), *(_side(letter) for letter in "ab"), _score()]
    head, grid = page("Tokens", LEAD, parts)
    return [head, html.Div(grid, id="tokens-page", **hyphened({"data-prompts": state.prompts or ""}))]


def _entry() -> html.Section:
    field = html.Label(
        [html.Span("Text", className="visually-hidden"), dcc.Textarea(id="typed", className="typed", value=EXAMPLE)],
        className="typed-field",
    )
    buttons = [
        _button(f"Generate {GENERATED}", "generate-tokens", {"data-count": str(GENERATED)}),
        _button([icon("pin"), "Pin"], "pin-text", {}),
    ]
    told = html.Div(id="typed-told", className="t-note ink-3", role="status")
    pins = html.Div(id="typed-pins", className="pins")
    return html.Section(
        [html.Div([field, *buttons], className="typed-row"), html.Div([told, pins], className="row below")],
        className="plate span-12",
        **hyphened({"aria-label": "Text"}),
    )


def _button(face: Any, act: str, data: dict[str, str]) -> html.Button:
    return html.Button(face, type="button", className="small-button", **hyphened({"data-act": act} | data))


def _side(letter: str) -> html.Section:
    keys = "left and right arrows walk tokens, up and down layers"
    tokens = html.Div(
        id=f"tokens-{letter}",
        className="tokens",
        role="listbox",
        tabIndex="0",
        **hyphened({"data-side": letter, "aria-label": f"Tokens of {letter.upper()}: {keys}"}),
    )
    head = html.Header(
        [
            html.Span(letter.upper(), className=f"letter {letter}"),
            html.H2("…", id=f"tokens-name-{letter}"),
            html.Span(className="grow"),
            html.Span(id=f"tokens-time-{letter}", className="t-note ink-3"),
        ],
        className="plate-head",
    )
    below = html.Div(
        [
            html.Div([html.H3("Experts, weight"), html.Div(id=f"tokens-experts-{letter}")]),
            html.Div([html.H3("Next token"), html.Div(id=f"tokens-next-{letter}")]),
        ],
        className="token-told",
    )
    return html.Section(
        [head, html.Div(id=f"tokens-trouble-{letter}"), tokens, below],
        className="plate span-6",
        **hyphened({"aria-label": f"Tokens of {letter.upper()}"}),
    )


def _score() -> html.Section:
    segments = [
        html.Button(
            mode, type="button", **hyphened({"data-act": "score-mode", "data-mode": mode, "aria-pressed": "false"})
        )
        for mode in MODES
    ]
    head = html.Header(
        [html.H2("The sentence as a score"), html.Div(html.Div(segments, className="segments"), className="knobs")],
        className="plate-head",
    )
    # drawn in a canvas, which does not flash while a text grows; its words stand in the label and above it
    score = html.Div(id="score", className="score", role="img", **hyphened({"aria-label": "The sentence as a score"}))
    facts = html.Div([html.Span(fact, className="fact") for fact in FACTS], className="facts")
    return html.Section(
        [
            head,
            html.P("", className="reading"),
            html.Div(score, className="plate-body scroll-x"),
            html.Footer(facts, className="plate-foot"),
        ],
        id="score-plate",
        className="plate span-12",
        **hyphened({"aria-label": "The sentence as a score"}),
    )
