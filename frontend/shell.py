"""What stands around every page: rail, context bar, drawer, key sheet."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from frontend import theme
from frontend.attributes import hyphened
from frontend.client import Refusal
from frontend.panel import icon
from frontend.state import Material, PageState

# pages that exist by hand; a family of measures without one gets its page from the catalogue
RAIL = (
    (None, (("overview", "/", "Overview"),)),
    ("Material", (("box", "/checkpoints", "Checkpoints"), ("text", "/prompts", "Prompts"))),
    (
        "Geometry",
        (
            ("route", "/routing", "Routing"),
            ("compass", "/router", "Router"),
            ("couple", "/coupling", "Coupling"),
            ("function", "/function", "Function"),
            ("planes", "/representation", "Representation"),
            ("aim", "/specialisation", "Specialisation"),
            ("path", "/trajectories", "Trajectories"),
        ),
    ),
    (
        "Together",
        (
            ("split", "/compare", "Compare"),
            ("text", "/tokens", "Tokens"),
            ("match", "/whatif", "What if"),
            ("play", "/live", "Live"),
            ("table", "/experiments", "Experiments"),
            ("pulse", "/jobs", "Jobs"),
        ),
    ),
)
OWN = frozenset(path.strip("/") for _, links in RAIL for _, path, _ in links)

KEYS = (
    ("g then o k p r w c j", "go to overview, checkpoints, prompts, routing, router, compare, jobs"),
    (
        "g then u f e s t y l x",
        "go to coupling, function, representation, specialisation, trajectories, tokens, live, experiments",
    ),
    (", .", "previous, next layer"),
    ("← →", "on the slider of trajectories: earlier, later step"),
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
            [html.Span(className="logo", **hyphened({"aria-hidden": "true"})), html.B("moe-geometry")],
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
            out.append(html.Div(link, **hyphened({"aria-current": "page"} if here else {})))
    return out


def _families(material: Material) -> tuple[tuple[str, str, str], ...]:
    names = dict.fromkeys(m["family"] for m in material.measures)
    return tuple(("grid", f"/{n}", n.capitalize()) for n in names if n not in OWN)


def trouble(refusal: Refusal) -> list:
    """A page that could not be made: the sentence, and a way to try again."""
    again = html.Button("Try again", type="button", className="small-button", **hyphened({"data-act": "refresh"}))
    strip = html.Div(
        [icon("alert"), html.Span(str(refusal)), html.Span(className="grow"), again], className="trouble", role="alert"
    )
    return [html.Div(html.H1("Not available"), className="page-head"), strip]


def _tools() -> list:
    return [
        html.Button(
            [html.Span("no jobs", className="ink-3")],
            id="jobs-chip",
            type="button",
            className="chip",
            **hyphened({"data-act": "jobs", "aria-label": "Jobs"}),
        ),
        html.Button(
            icon("link"),
            type="button",
            className="bare",
            title="Copy link to this page",
            **hyphened({"data-act": "copy-page", "aria-label": "Copy link to this page"}),
        ),
        html.Button(
            html.Span(className="icon i-theme", **hyphened({"aria-hidden": "true"})),
            type="button",
            className="bare",
            title="Light or dark (t)",
            **hyphened({"data-act": "theme", "aria-label": "Light or dark"}),
        ),
    ]


def layout() -> dmc.MantineProvider:
    """Everything that is always there; pages and panels fill it."""
    stores = [dcc.Store(id=name) for name in ("refresh", "report", "trace-report", "jobs-data", "table-asked")]
    bar = html.Header(
        [html.Div(id="context", className="context-left"), html.Span(className="grow"), *_tools()], className="context"
    )
    return dmc.MantineProvider(
        [
            dcc.Location(id="loc"),
            dcc.Store(id="theme", storage_type="local"),
            *stores,
            html.Nav(id="rail", className="rail", **hyphened({"aria-label": "Pages"})),
            html.Div([bar, html.Main(html.Div(className="page-wait"), id="main", tabIndex="-1")], className="stage"),
            _drawer(),
            _key_sheet(),
            _table(),
            # brings plotly.js while the first answers are under way: the first figure would wait for 1.5 MB of script
            dcc.Graph(id="ahead", figure={}, style={"display": "none"}),
            html.Div(id="live-region", className="visually-hidden", role="status", **hyphened({"aria-live": "polite"})),
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
        size="420px",
        padding="lg",
        **_modal("Close jobs"),
    )


def _table() -> dmc.Modal:
    body = html.Div(id="table-body")
    return dmc.Modal(body, id="table-modal", opened=False, title="Table", size="80%", **_modal("Close table"))


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
