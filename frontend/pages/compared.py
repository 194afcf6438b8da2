"""Who is compared: up to four checkpoints, the first of them the baseline; every button only writes the address."""

from __future__ import annotations

from dash import html

from frontend import beyond, words
from frontend.attributes import hyphened
from frontend.contextbar import checkpoint_chip
from frontend.panel import icon
from frontend.state import COMPARED, Material, PageState


def compared() -> html.Div:
    """The slot; it follows the URL."""
    return html.Div(id="compared", className="slot span-12")


def strip(state: PageState, material: Material, search: str | None = "") -> html.Div:
    """The baseline, what stands against it, and room for what is missing."""
    chosen = dict(state.compared)
    parts = [_baseline(state, material)]
    parts += [_other(letter, chosen, material) for letter in COMPARED[1:] if letter in chosen]
    free = next((letter for letter in COMPARED if letter not in chosen), None)
    if free:
        parts.append(
            html.Span(["add", checkpoint_chip(free, None, material)], className="row", **hyphened({"data-free": free}))
        )
    parts += [html.Span(className="grow"), beyond.control(state.beyond), _report(search)]
    return html.Div(parts, className="strip who", role="group", **hyphened({"aria-label": "Checkpoints compared"}))


def _report(search: str | None) -> html.A:
    """The page's own query asks for the file: what it shows is what it holds."""
    told = "One HTML file that opens offline, of every difference that has been asked"
    return html.A(
        [icon("down"), "Report"], href=f"/report{search or ''}", download="", className="small-button", title=told
    )


def _baseline(state: PageState, material: Material) -> html.Span:
    name = words.checkpoint(material.checkpoint(state.a), state.a)
    tag = html.Span("baseline", className="tag", title="Every difference is taken against it")
    return html.Span([_letter("a"), html.Span(name, className="clip"), tag], className="row")


def _other(letter: str, chosen: dict[str, str | None], material: Material) -> html.Span:
    own, first = chosen[letter], chosen["a"]
    name = words.checkpoint(material.checkpoint(own), own)
    pin = html.Button(
        "make baseline",
        type="button",
        className="textual",
        **hyphened(
            {
                "data-act": "baseline",
                "data-letter": letter,
                "data-own": own or "",
                "data-first": first or "",
                "aria-label": f"Make {name} the baseline",
            }
        ),
    )
    if letter == "b":
        return html.Span([_letter(letter), html.Span(name, className="clip"), pin], className="row")
    drop = html.Button(
        "remove",
        type="button",
        className="textual",
        **hyphened({"data-act": "drop", "data-letter": letter, "aria-label": f"Remove {name}"}),
    )
    return html.Span([checkpoint_chip(letter, own, material), pin, drop], className="row")


def _letter(letter: str) -> html.Span:
    return html.Span(letter.upper(), className=f"letter {letter}")
