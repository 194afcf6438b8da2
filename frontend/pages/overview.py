"""The first minute: something real above the fold, then what to ask."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from frontend import words
from frontend.client import Client
from frontend.pages.head import ask_all, page, slots
from frontend.panel import icon, plain_plate
from frontend.places import Place
from frontend.state import Material, PageState

HEADLINE = Place("load_violation", sides="runs", span=8, title="Load violation of every run", prompts="validation")
ASKS = (
    ("/routing", "Which experts do the work, and how evenly?"),
    ("/routing", "Do prompts of one task route alike?"),
    ("/routing", "Where in depth does the task decide?"),
    ("/router", "How alike are the router's rows?"),
    ("/coupling", "Does a router row know its expert?"),
    ("/function", "Do experts do different things?"),
    ("/representation", "Do experts see different tokens?"),
    ("/specialisation", "What is each expert for?"),
    ("/trajectories", "When do routes settle?"),
    ("/compare", "How far apart are A and B?"),
    ("/prompts", "What about my own prompts?"),
    ("/checkpoints", "What about my own model?"),
)


async def layout(client: Client, state: PageState, material: Material) -> list:
    """What is loaded and one figure about all of it; an empty install explains itself."""
    health = await client.health()
    if not material.checkpoints:
        say = "No checkpoint is loaded. Register a folder or a hub id, or put one under data/checkpoints."
        go = dcc.Link("Register a checkpoint", href="/checkpoints", className="primary")
        return page("Expert geometry", say, [plain_plate("Nothing loaded yet", [html.Div(go, className="blank")])])
    parts: list[Any] = await slots(client, state, (HEADLINE,), material)
    parts += [_asks(state), _runs(material, state), _loaded(health, material, state)]
    return page("Expert geometry of trained routers", _lead(material), parts, (ask_all(),))


def _lead(material: Material) -> str:
    runs = len({c.get("run") for c in material.checkpoints if c.get("run")})
    loaded = (
        f"{len(material.checkpoints)} checkpoints of {runs} runs and {len(material.prompts)} prompt sets are loaded"
    )
    return f"{loaded}; {len(material.measures)} measures can be asked of them."


def _asks(state: PageState) -> html.Section:
    lines = [
        dcc.Link([html.Span(text, className="t-body ink"), icon("right")], href=state.url(path), className="ask")
        for path, text in ASKS
    ]
    return plain_plate(
        "Ask",
        [html.Div(lines, className="asks")],
        4,
        "What the store holds opens at once; the rest says its cost first.",
    )


def _runs(material: Material, state: PageState) -> html.Section:
    head = html.Tr([html.Th(t) for t in ("run", "router", "layers × experts", "steps")])
    rows = []
    for last in material.last_of_runs():
        members = [c for c in material.checkpoints if c.get("run") == last.get("run")] if last.get("run") else [last]
        steps = f"{len(members)}, to {words.step(last.get('step'))}" if last.get("step") is not None else "1"
        cells = [words.router(last), words.shape(last), steps]
        rows.append(html.Tr([html.Th(last.get("run") or last["id"], scope="row"), *(html.Td(c) for c in cells)]))
    more = dcc.Link([icon("plus"), "Register"], href=state.url("/checkpoints"), className="small-button")
    return plain_plate(
        "Checkpoints",
        [
            html.Table([html.Thead(head), html.Tbody(rows)], className="facts-table"),
            html.Div(more, className="row below"),
        ],
        8,
        "Runs with their last step; each is one router trained on the same data.",
    )


def _loaded(health: Any, material: Material, state: PageState) -> html.Section:
    sets = [
        html.Div(
            [
                html.B(p["name"]),
                html.Div(
                    f"{p['prompts']:,} prompts · {', '.join(p.get('categories') or {})}", className="t-note ink-3"
                ),
            ],
            className="listed",
        )
        for p in material.prompts
    ]
    more = dcc.Link([icon("up"), "Upload prompts"], href=state.url("/prompts"), className="small-button")
    foot = (
        f"device {health.get('device')}",
        f"worker {health.get('worker')}",
        f"version {health.get('version')}",
        f"store {health.get('store')}",
    )
    return plain_plate("Prompts", [*sets, html.Div(more, className="row below")], 4, notes=foot)
