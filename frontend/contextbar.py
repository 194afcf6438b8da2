"""The context bar: checkpoints A and B, prompts, layer; the same in the same order on every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from frontend import words
from frontend.attributes import hyphened
from frontend.folded import folded
from frontend.panel import icon
from frontend.state import Material, PageState, place


def context(state: PageState, material: Material) -> list:
    """The same five things in the same order on every page."""
    swap = html.Button(
        icon("swap"),
        type="button",
        className="bare",
        title="Swap A and B (x)",
        **hyphened({"data-act": "swap", "aria-label": "Swap A and B"}),
    )
    gap = html.Span(className="rule", **hyphened({"aria-hidden": "true"}))
    return [
        checkpoint_chip("a", state.a, material),
        swap,
        checkpoint_chip("b", state.b, material),
        gap,
        _prompts_chip(state, material),
        html.Span(className="rule", **hyphened({"aria-hidden": "true"})),
        _stepper(state, material),
    ]


def _chip(label: str, face: Sequence, choices: Sequence, name: str) -> html.Details:
    summary = html.Summary([*face, icon("chevron")], className="chip", **hyphened({"aria-label": label}))
    entry = dcc.Input(type="search", placeholder="Filter", className="filter")
    search = html.Label([html.Span(f"Filter {name}", className="visually-hidden"), entry])
    return html.Details(
        [summary, folded([search, html.Div(list(choices), className="choices")], "menu-open wide")],
        className="menu chip-menu",
        id=f"chip-{name}",
    )


def checkpoint_chip(letter: str, current: str | None, material: Material) -> html.Details:
    """What a letter stands for, and the list to choose it from."""
    own = material.checkpoint(current)
    face = [
        html.Span(letter.upper(), className=f"letter {letter}"),
        html.Span(words.checkpoint(own, current or "choose…"), className="clip"),
    ]
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for c in material.checkpoints:
        runs.setdefault(c.get("run") or "registered", []).append(c)
    choices = []
    for run, members in runs.items():
        steps = [
            html.Button(
                words.step_of(c) if c.get("run") else c["id"],
                type="button",
                className="step-button",
                **_choice(letter, c["id"], current),
            )
            for c in sorted(members, key=place)
        ]
        choices.append(
            html.Div(
                [
                    html.Div([html.B(run), html.Span(words.router(members[0]), className="ink-3")], className="row"),
                    html.Div(steps, className="steps"),
                ],
                className="choice",
                **hyphened({"data-name": run}),
            )
        )
    return _chip(f"Checkpoint {letter.upper()}: {words.checkpoint(own, current)}", face, choices, letter)


def _choice(parameter: str, value: str, current: str | None) -> dict[str, Any]:
    return {"data-parameter": parameter, "data-value": value, "aria-pressed": str(value == current).lower()}


def _prompts_chip(state: PageState, material: Material) -> html.Details:
    own = material.prompt_set(state.prompts)
    face = [
        icon("text"),
        html.Span(f"{own['name']} · {own['prompts']:,}" if own else state.prompts or "no prompts", className="clip"),
    ]
    choices = [
        html.Div(
            html.Button(
                [html.B(p["name"]), html.Span(f"{p['prompts']:,} prompts", className="ink-3")],
                type="button",
                className="menu-line",
                **_choice("prompts", p["name"], state.prompts),
            ),
            className="choice",
            **hyphened({"data-name": p["name"]}),
        )
        for p in material.prompts
    ]
    return _chip(f"Prompts: {state.prompts}", face, choices, "prompts")


def _stepper(state: PageState, material: Material) -> html.Div:
    own = material.checkpoint(state.a)
    last = max(int(own.get("layers") or 1) - 1, 0) if own else 0
    layer = min(state.layer, last)

    def arrow(glyph: str, to: int, title: str, at_end: bool) -> html.Button:
        # disabled in look only: focus must not be lost when the end is reached
        return html.Button(
            icon(glyph),
            type="button",
            title=title,
            className="bare",
            **hyphened(
                {
                    "data-parameter": "layer",
                    "data-value": str(to),
                    "aria-label": title,
                    "aria-disabled": str(at_end).lower(),
                }
            ),
        )

    middle = html.Span(
        [html.Span("Layer ", className="ink-3"), html.B(str(layer)), html.Span(f" / {last}", className="ink-3")],
        className="num",
        id="layer-told",
        **hyphened(
            {"data-last": str(last), "data-layer": str(layer), "data-a": state.a or "", "data-b": state.b or ""}
        ),
    )
    return html.Div(
        [
            arrow("left", max(layer - 1, 0), "Previous layer (,)", layer == 0),
            middle,
            arrow("right", min(layer + 1, last), "Next layer (.)", layer == last),
        ],
        className="stepper",
    )
