"""A training run as it trains, beside another: loads, collapse and router rows step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from dash import dcc, html

from frontend import folded
from frontend.client import Client
from frontend.figure import sent
from frontend.pages.head import page
from frontend.panel import graph, plain_plate
from frontend.state import Material, PageState
from frontend.views import timeline

BEAT = 2000
"""Milliseconds between two looks at a run."""
LEAD = "Runs that train now or did: loads, dead experts and router rows, step by step. A run may stand beside another."
HOW = """from backend.recorder import GeometryRecorder
recorder = GeometryRecorder(model, every=100, folder="runs/mine", to="http://127.0.0.1:8000")
recorder.step()  # after each optimiser step"""
QUANTITIES = {
    "max_violation": (
        "Load violation (MaxVio)",
        "excess over an equal share (0 is balanced)",
        "How far is the busiest expert above an equal share, over the tokens of the step?",
        "Wang et al. 2024, arXiv 2408.15664",
    ),
    "batch_max_violation": (
        "Load violation of one pass",
        "excess over an equal share",
        "The same over the tokens of each forward pass, mean over the step's passes.",
        "Wang et al. 2024, arXiv 2408.15664; fewer tokens are less even, blind routing's too",
    ),
    "load_entropy": (
        "Load entropy",
        "entropy over ln E (1 is balanced)",
        "How evenly are tokens spread over experts?",
        "Shannon 1948 over the loads of arXiv 2408.15664",
    ),
    "dead_experts": (
        "Dead experts",
        "experts without a token in the step",
        "Does routing collapse?",
        "Ours: counted over one step, so a rare expert may only be unlucky",
    ),
    "row_cosine": (
        "Cosine of router rows",
        "mean cosine over pairs (-1 to 1)",
        "Do router rows become alike?",
        "Ahrac, Hochwald & Geva 2026, arXiv 2605.12476; recorded with geometry=True; softmax is blind to a common row",
    ),
    "centred_row_cosine_rms": (
        "Centred cosine of router rows",
        "rms cosine over pairs (0 to 1)",
        "Do they without their mean row?",
        "Ours; recorded with geometry=True",
    ),
    "centroid_cosine": (
        "Cosine of expert inputs",
        "mean cosine over pairs (-1 to 1)",
        "Do experts see different tokens?",
        "Ours: sums of inputs by expert; recorded with geometry=True",
    ),
}
"""Title, unit, question and source of each timeline."""


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The runs to choose from, a timeline for each quantity, and the last numbers under the trainers' names."""
    runs = await client.live_runs()
    if not runs:
        how = [html.P("No run has been recorded. Two lines in any training loop do:", className="ink-2"), html.Pre(HOW)]
        return page("Live", LEAD, [plain_plate("No run yet", how)])
    chosen = choice(runs, state.knobs)
    parts = [plain_plate("Runs", [_table(runs, chosen)], span=12)]
    parts += [_plate(quantity) for quantity in QUANTITIES]
    parts.append(html.Div(id="live-trainers", className="slot span-12"))
    beat = dcc.Interval(id="live-beat", interval=BEAT)
    return [*page("Live", LEAD, parts), beat, dcc.Store(id="live-chosen", data=list(chosen)), dcc.Store(id="live-seen")]


def choice(runs: Sequence[Mapping[str, Any]], knobs: Mapping[str, str]) -> tuple[str, ...]:
    """The run to follow, the one heard of last unless the URL names one, and the one beside it, if it does."""
    names = [run["name"] for run in runs]
    first = knobs.get("live.run", names[0])
    beside = knobs.get("live.beside", "")
    return (first, beside) if beside in names and beside != first else (first,)


async def read(client: Client, chosen: Sequence[str]) -> list[Mapping[str, Any]]:
    """The chosen runs with their points."""
    return list(await asyncio.gather(*(client.live_run(name) for name in chosen)))


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """A figure for each quantity, as the browser takes it; None for one that was not recorded."""
    told = [(run["name"], run["points"]) for run in runs]
    recorded = {name for _, points in told for point in points for name in point if timeline.known_any(point, name)}
    return {
        name: folded.told(sent(timeline.draw(told, name, unit))) if name in recorded else None
        for name, (_, unit, _, _) in QUANTITIES.items()
    }


def reading(runs: Sequence[Mapping[str, Any]], quantity: str) -> str:
    """The last recorded step in words."""
    told = []
    for run in runs:
        values = timeline.known(run["points"][-1].get(quantity)) if run["points"] else timeline.known(None)
        if values.size:
            at = f"{run['name']} at step {run['points'][-1]['step']:,}"
            told.append(f"{at}: mean {values.mean():.3g}, layers {values.min():.3g} to {values.max():.3g}.")
    return " ".join(told) or "Not recorded: it takes geometry=True."


def trainers(runs: Sequence[Mapping[str, Any]]) -> html.Section:
    """The last step's numbers as the trainers name them."""
    with_points = [run for run in runs if run["points"]]
    head = html.Tr([html.Th("as logged"), *(html.Th(run["name"]) for run in with_points), html.Th("what it is")])
    body = [
        html.Tr(
            [
                html.Th(name, scope="row"),
                *(html.Td(f"{run['points'][-1]['trainers'][name]:.4g}", className="num") for run in with_points),
                html.Td(meaning, className="ink-3"),
            ]
        )
        for name, meaning in (with_points[0]["trainers"] if with_points else {}).items()
    ]
    body += [
        html.Tr([html.Th(name, scope="row"), *(html.Td("–", className="num") for _ in with_points), html.Td(why)])
        for name, why in (with_points[0]["untold"] if with_points else {}).items()
    ]
    table = html.Table([html.Thead(head), html.Tbody(body)], className="facts-table")
    return plain_plate("As your trainer would log it", [table], reading="Of the last recorded step, over all layers.")


def _plate(quantity: str) -> html.Div:
    title, unit, question, source = QUANTITIES[quantity]
    key = {"key": quantity}
    frame = graph(f"{title} over training steps", timeline.HEIGHT, id={"type": "live-frame"} | key)
    told = html.P(question, id={"type": "live-reading"} | key, className="reading")
    notes = (
        unit,
        "line: mean over layers, band: their range",
        "no null is drawn: the page of the measure has one",
    )
    body = plain_plate(title, [told, frame], notes=(*notes, source))
    return html.Div(body, className="slot span-6")


def _table(runs: Sequence[Mapping[str, Any]], chosen: Sequence[str]) -> html.Table:
    head = html.Tr([html.Th(name) for name in ("run", "model", "layers × experts", "last step", "shown")])
    rows = [
        html.Tr(
            [
                html.Th(run["name"], scope="row"),
                html.Td(run["model_type"]),
                html.Td(f"{len(run['layers'])} × {run['experts']}, top-{run['top_k']}"),
                html.Td(f"{run['last_step']:,}", className="num"),
                html.Td(_links(run["name"], chosen)),
            ]
        )
        for run in runs
    ]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="facts-table")


def _links(name: str, chosen: Sequence[str]) -> list:
    if name == chosen[0]:
        return [html.Span("followed", className="ink-3")]
    beside = {"k.live.run": chosen[0], "k.live.beside": name}
    second = [html.Span("beside it", className="ink-3")] if name in chosen else [_link("beside it", beside)]
    return [_link("follow", {"k.live.run": name}), " ", *second]


def _link(text: str, query: Mapping[str, str]) -> dcc.Link:
    return dcc.Link(text, href=f"/live?{urlencode(query)}")
