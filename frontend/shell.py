"""What stands around every page: rail, context bar, drawer, key sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from frontend import theme, words
from frontend.client import Refusal
from frontend.panel import icon
from frontend.state import Material, PageState

# pages that exist by hand; a family of measures without one gets its page from the catalogue
RAIL = (
    (None, (("overview", "/", "Overview"),)),
    ("Material", (("box", "/checkpoints", "Checkpoints"), ("text", "/prompts", "Prompts"))),
    ("Geometry", (("route", "/routing", "Routing"), ("compass", "/router", "Router"))),
    ("Together", (("split", "/compare", "Compare"), ("pulse", "/jobs", "Jobs"))),
)
OWN = frozenset(path.strip("/") for _, links in RAIL for _, path, _ in links)

KEYS = (
    ("g then o k p r w c j", "go to overview, checkpoints, prompts, routing, router, compare, jobs"),
    (", .", "previous, next layer"),
    ("x", "swap A and B"),
    ("/", "choose a checkpoint"),
    ("j", "jobs"),
    ("c v f h", "of the panel in focus or under the pointer: copy link, as a table, full size, what does this mean"),
    ("t", "light or dark"),
    ("[", "fold the rail"),
    ("Esc", "close what is open"),
    ("?", "this sheet"),
)


def rail(state: PageState, material: Material) -> list:
    """Pages by what they are about."""
    out: list = [
        dcc.Link(
            [html.Span(className="logo", **{"aria-hidden": "true"}), html.B("moe-geometry")],
            href=state.url("/"),
            className="brand",
        )
    ]
    for heading, links in RAIL:
        if heading:
            out.append(html.Div(heading, className="rail-heading"))
        more = _families(material) if heading == "Geometry" else ()
        for glyph, path, name in (*links, *more):
            here = path == state.path
            link = dcc.Link(
                [icon(glyph), html.Span(name)],
                href=state.url(path),
                className="rail-link" + (" here" if here else ""),
                title=name,
            )
            out.append(html.Div(link, **({"aria-current": "page"} if here else {})))
    return out


def _families(material: Material) -> tuple[tuple[str, str, str], ...]:
    names = dict.fromkeys(m["family"] for m in material.measures)
    return tuple(("grid", f"/{n}", n.capitalize()) for n in names if n not in OWN)


def context(state: PageState, material: Material) -> list:
    """The same five things in the same order on every page."""
    swap = html.Button(
        icon("swap"),
        type="button",
        className="bare",
        title="Swap A and B (x)",
        **{"data-act": "swap", "aria-label": "Swap A and B"},
    )
    gap = html.Span(className="rule", **{"aria-hidden": "true"})
    return [
        _checkpoint_chip("a", state.a, material),
        swap,
        _checkpoint_chip("b", state.b, material),
        gap,
        _prompts_chip(state, material),
        html.Span(className="rule", **{"aria-hidden": "true"}),
        _stepper(state, material),
    ]


def _chip(label: str, face: Sequence, choices: Sequence, name: str) -> html.Details:
    summary = html.Summary([*face, icon("chevron")], className="chip", **{"aria-label": label})
    entry = dcc.Input(type="search", placeholder="Filter", className="filter", id=f"filter-{name}")
    search = html.Label([html.Span(f"Filter {name}", className="visually-hidden"), entry])
    return html.Details(
        [summary, html.Div([search, html.Div(list(choices), className="choices")], className="menu-open wide")],
        className="menu chip-menu",
        id=f"chip-{name}",
    )


def _checkpoint_chip(letter: str, current: str | None, material: Material) -> html.Details:
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
                words.step(c["step"]) if c.get("step") is not None else c["id"],
                type="button",
                className="step-button",
                **_choice(letter, c["id"], current),
            )
            for c in sorted(members, key=lambda c: c.get("step") or 0)
        ]
        choices.append(
            html.Div(
                [
                    html.Div([html.B(run), html.Span(words.router(members[0]), className="ink-3")], className="row"),
                    html.Div(steps, className="steps"),
                ],
                className="choice",
                **{"data-name": run},
            )
        )
    return _chip(f"Checkpoint {letter.upper()}: {words.checkpoint(own, current)}", face, choices, letter)


def _choice(parameter: str, value: str, current: str | None) -> dict[str, str]:
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
            **{"data-name": p["name"]},
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
            **{
                "data-parameter": "layer",
                "data-value": str(to),
                "aria-label": title,
                "aria-disabled": str(at_end).lower(),
            },
        )

    middle = html.Span(
        [html.Span("Layer ", className="ink-3"), html.B(str(layer)), html.Span(f" / {last}", className="ink-3")],
        className="num",
        id="layer-told",
        **{"data-last": str(last), "data-layer": str(layer), "data-a": state.a or "", "data-b": state.b or ""},
    )
    return html.Div(
        [
            arrow("left", max(layer - 1, 0), "Previous layer (,)", layer == 0),
            middle,
            arrow("right", min(layer + 1, last), "Next layer (.)", layer == last),
        ],
        className="stepper",
    )


def trouble(refusal: Refusal) -> list:
    """A page that could not be made: the sentence, and a way to try again."""
    again = html.Button("Try again", type="button", className="small-button", **{"data-act": "refresh"})
    strip = html.Div(
        [icon("alert"), html.Span(str(refusal)), html.Span(className="grow"), again], className="trouble", role="alert"
    )
    return [html.Div(html.H1("Not available"), className="page-head"), strip]


def layout() -> dmc.MantineProvider:
    """Everything that is always there; pages and panels fill it."""
    stores = [dcc.Store(id=name) for name in ("refresh", "report", "jobs-data", "table-asked")]
    tools = [
        html.Button(
            [html.Span("no jobs", className="ink-3")],
            id="jobs-chip",
            type="button",
            className="chip",
            **{"data-act": "jobs", "aria-label": "Jobs"},
        ),
        html.Button(
            icon("link"),
            type="button",
            className="bare",
            title="Copy link to this page",
            **{"data-act": "copy-page", "aria-label": "Copy link to this page"},
        ),
        html.Button(
            html.Span(className="icon i-theme", **{"aria-hidden": "true"}),
            type="button",
            className="bare",
            title="Light or dark (t)",
            **{"data-act": "theme", "aria-label": "Light or dark"},
        ),
    ]
    bar = html.Header(
        [html.Div(id="context", className="context-left"), html.Span(className="grow"), *tools], className="context"
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="loc"),
            dcc.Store(id="theme", storage_type="local"),
            dcc.Store(id="palette", data=theme.pairs()),
            *stores,
            html.Nav(id="rail", className="rail", **{"aria-label": "Pages"}),
            html.Div([bar, html.Main(html.Div(className="page-wait"), id="main", tabIndex="-1")], className="stage"),
            _drawer(),
            _key_sheet(),
            dmc.Modal(
                html.Div(id="table-body"),
                id="table-modal",
                opened=False,
                title="Table",
                size="80%",
                **_modal("Close table"),
            ),
            html.Div(id="live-region", className="visually-hidden", role="status", **{"aria-live": "polite"}),
        ],
        id="provider",
        theme=theme.MANTINE,
        forceColorScheme="light",
    )


def _modal(close: str) -> dict[str, Any]:
    return {
        "transitionProps": {"duration": 0},
        "overlayProps": {"backgroundOpacity": 0.18},
        "closeButtonProps": {"aria-label": close},
    }


def _drawer() -> dmc.Drawer:
    return dmc.Drawer(
        html.Div(id="drawer-jobs"),
        id="jobs",
        title="Jobs",
        opened=False,
        position="right",
        size=420,
        padding="lg",
        **_modal("Close jobs"),
    )


def _key_sheet() -> dmc.Modal:
    lines = [html.Div([html.Dt([html.Kbd(k)]), html.Dd(v)]) for k, v in KEYS]
    return dmc.Modal(
        html.Dl(lines, className="keys"),
        id="keys",
        title="Keyboard",
        opened=False,
        size=780,
        **_modal("Close key sheet"),
    )
