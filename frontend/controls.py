"""From a measure's knobs to widgets. A turn of a knob only writes the query string; nothing here runs a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from frontend.attributes import hyphened

FEW = 4


def knobs(
    measure: Mapping[str, Any], values: Mapping[str, Any], fixed: Mapping[str, Any]
) -> list[html.Div | html.Label]:
    """One control per knob that the page has not fixed."""
    return [knob(measure, k, values.get(k["name"], k["default"])) for k in measure["knobs"] if k["name"] not in fixed]


def knob(measure: Mapping[str, Any], told: Mapping[str, Any], value: Any) -> html.Div | html.Label:
    """Segments for a few choices, a list for many, a field for a number."""
    name, parameter = told["name"].replace("_", " "), f"k.{measure['name']}.{told['name']}"
    if told["kind"] == "bool":
        return segments(name, parameter, (("off", "false"), ("on", "true")), "true" if value else "false", told=name)
    if told["kind"] == "choice" and len(told["choices"]) <= FEW:
        return segments(name, parameter, tuple((str(c).replace("_", " "), str(c)) for c in told["choices"]), str(value))
    if told["kind"] == "choice":
        return html.Div(
            [
                html.Span(name, className="segments-name"),
                pick(name, parameter, tuple(map(str, told["choices"])), str(value)),
            ],
            className="segments-field",
        )
    entry = dcc.Input(
        value=str(value), debounce=True, type="text", className="entry", id={"type": "entry", "parameter": parameter}
    )
    return html.Label([html.Span(name), entry], className="field", **hyphened({"data-parameter": parameter}))


def segments(name: str, parameter: str, options: tuple[tuple[str, str], ...], value: str, told: str = "") -> html.Div:
    """A row of buttons of which one is pressed; `told` names it in front where the options alone would not."""
    buttons = [
        html.Button(
            text,
            type="button",
            **hyphened(
                {"data-parameter": parameter, "data-value": option, "aria-pressed": str(option == value).lower()}
            ),
        )
        for text, option in options
    ]
    front = [html.Span(told, className="segments-name")] if told else []
    return html.Div(front + buttons, className="segments", role="group", **hyphened({"aria-label": name}))


def pick(name: str, parameter: str, options: tuple[str, ...], value: str) -> html.Details:
    """A list to choose one from, as a native disclosure."""
    buttons = [
        html.Button(
            option,
            type="button",
            className="menu-line",
            **hyphened(
                {"data-parameter": parameter, "data-value": option, "aria-pressed": str(option == value).lower()}
            ),
        )
        for option in options
    ]
    head = html.Summary(
        [value, html.Span(className="icon i-chevron", **hyphened({"aria-hidden": "true"}))],
        className="small-button",
        **hyphened({"aria-label": f"{name}: {value}"}),
    )
    return html.Details([head, html.Div(buttons, className="menu-open")], className="menu pick")
