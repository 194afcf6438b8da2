"""The strip that says which step of a run the figures show: play, a slider, and how the axis is told.

What moves moves in the browser (`assets/steps.js`); the server only says which steps there are.
"""

from __future__ import annotations

import json
from typing import Any

from dash import html

from frontend.attributes import hyphened
from frontend.clock import AXIS, Clock, clock_of, why_no_tokens
from frontend.panel import icon
from frontend.state import Material, PageState
from frontend.views.multiples import ticks

MOST = 12
"""Ticks under the slider."""


def strip(state: PageState, material: Material) -> list:
    """Play, slider and axis for the run of A; a sentence where A has no other steps."""
    clock = clock_of(material, state)
    if clock is None:
        return [html.P("A has no other steps loaded: choose a run with more than one in the bar above.")]
    play = html.Button(
        [icon("play"), html.Span("Play", id="step-play-told")],
        id="step-play",
        type="button",
        className="small-button",
        **hyphened({"data-act": "play-steps"}),
    )
    words = [clock.words(i) for i in range(len(clock.steps))]
    told = hyphened({"data-steps": json.dumps(clock.steps), "data-told": json.dumps(words)})
    slider = html.Div([html.Div(id="step-bar", className="step-bar", **told), _ticks(clock)], className="step-track")
    return [play, slider, html.Span(id="step-told", className="num step-told"), _axis(state, material)]


def _ticks(clock: Clock) -> html.Div:
    marks = []
    for i in ticks(clock, MOST):
        end = " first" if i == 0 else " last" if i == clock.last else ""
        # The thumb's middle runs from half its width to the same from the right.
        at = {"left": f"calc(7px + (100% - 14px) * {i / clock.last:.4f})"}
        side = "start" if i == 0 else "end" if i == clock.last else ""
        marks.append(html.Span([clock.told[i], html.B(end)] if end else clock.told[i], style=at, className=side))
    return html.Div(marks, className="step-ticks", **hyphened({"aria-hidden": "true"}))


def _axis(state: PageState, material: Material) -> html.Div:
    why = why_no_tokens(material.steps_of(state.a))
    chosen = "tokens" if state.knobs.get(AXIS) == "tokens" and not why else "steps"
    buttons = [_choice("steps", chosen, ""), _choice("tokens", chosen, why)]
    front = html.Span("axis in", className="segments-name")
    group = html.Div([front, *buttons], className="segments", role="group", **hyphened({"aria-label": "Axis in"}))
    reason = [html.Span(f"No tokens: {why}.", id="no-tokens", className="t-note ink-3 step-why")] if why else []
    return html.Div([group, *reason], className="step-axis")


def _choice(text: str, chosen: str, why: str) -> html.Button:
    pressed = str(text == chosen).lower()
    more: dict[str, Any] = {"data-parameter": f"k.{AXIS}", "data-value": text, "aria-pressed": pressed}
    if why:
        more |= {"aria-disabled": "true", "aria-describedby": "no-tokens"}
    return html.Button(text, type="button", title=why or None, **hyphened(more))
