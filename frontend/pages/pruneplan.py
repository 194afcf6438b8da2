"""The prune planner of the page "what if": what each criterion would drop of A, and what that costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import dcc, html

from frontend.attributes import hyphened
from frontend.panel import icon, plain_plate

QUESTION = "For a share of each layer's experts: what each saliency criterion would drop, how far they agree, the cost."
ABOUT = ("checkpoint", "fingerprint", "prompt_set", "prompts_digest", "ratio")
"""What a keep-list says of where it comes from."""


def form() -> html.Section:
    """A ratio and a button."""
    entry = dcc.Input(id="prune-ratio", type="text", value="0.25", className="entry", debounce=False)
    go = html.Button([icon("play"), "Plan it"], id="prune-go", type="button", className="small-button")
    label = html.Label([html.Span("Share to drop"), entry], className="field")
    told = html.Div(id="prune-told", role="status", className="t-note ink-2")
    return plain_plate("Prune planner", [html.Div([label, go], className="whatif-form"), told], reading=QUESTION)


def result(told: Mapping[str, Any]) -> list:
    """Costs by criterion, and their agreement."""
    return [_costs(told), _agreement(told)]


def keep_list(told: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The keep-list of a criterion, as `moe-geometry edit --keep` reads it."""
    about = {name: told[name] for name in ABOUT}
    return json.dumps({**about, "criterion": row["criterion"], "layers": row["layers"]}, indent=1) + "\n"


def _costs(told: Mapping[str, Any]) -> html.Section:
    rows = told["criteria"]
    names = [each["category"] for each in rows[0]["perplexity"]]
    body = [["untouched", "", *(_short(each["before"]) for each in rows[0]["perplexity"]), ""]]
    body += [
        [
            row["criterion"].replace("_", " "),
            f"{row['halves']:.2f}",
            *(_short(each["after"]) for each in row["perplexity"]),
            _download(told, row),
        ]
        for row in rows
    ]
    if told["random"]:
        means = [_short(_random_mean(each)) for each in rows[0]["perplexity"]]
        body.append([f"random, mean of {told['random']}", f"{told['random_agreement']:.2f}", *means, ""])
    best = min(rows, key=lambda row: row["perplexity"][0]["change"]["value"])
    text = f"{told['kept']} of {told['experts']} experts kept in each layer. Least cost on these prompts: "
    text += f"{best['criterion'].replace('_', ' ')}, whose scores come from the same prompts."
    notes = (
        "perplexity",
        "halves: overlap of the keep-lists of two halves of the prompts, the ceiling of any agreement",
        f"{told['checkpoint']}, {told['prompt_set']}, {told['tokens']:,} tokens, {told['seconds']:.1f} s",
        "nothing of this is kept",
        *told["notes"],
    )
    heads = ("criterion", "halves", *names, "keep-list")
    return plain_plate(
        "What each criterion's keep-list costs", [_scroll(_table(heads, body), "Costs")], 12, text, notes
    )


def _agreement(told: Mapping[str, Any]) -> html.Section:
    names = [row["criterion"].replace("_", " ") for row in told["criteria"]]
    body = [[name, *(f"{share:.2f}" for share in row)] for name, row in zip(names, told["agreement"], strict=True)]
    notes = (
        "shared experts over all of either list, mean over layers (0 to 1)",
        f"two random lists of this size: {told['random_agreement']:.2f}",
    )
    table = _scroll(_table(("", *names), body), "Agreement")
    return plain_plate("How far criteria agree", [table], 12, "", notes)


def _table(names: Sequence[str], body: Sequence[Sequence[Any]]) -> html.Table:
    head = html.Thead(html.Tr([html.Th(name, scope="col") if name else html.Td() for name in names]))
    rows = [[html.Th(row[0], scope="row"), *(html.Td(cell, className="num") for cell in row[1:])] for row in body]
    return html.Table([head, html.Tbody([html.Tr(row) for row in rows])], className="facts-table")


def _scroll(table: html.Table, name: str) -> html.Div:
    return html.Div(table, className="scroll-x", tabIndex="0", role="group", **hyphened({"aria-label": name}))


def _download(told: Mapping[str, Any], row: Mapping[str, Any]) -> html.A:
    href = f"data:application/json;charset=utf-8,{quote(keep_list(told, row))}"
    return html.A(
        "JSON",
        href=href,
        download=f"keep-{row['criterion']}.json",
        className="link",
        **hyphened({"aria-label": f"Keep-list of {row['criterion']} as JSON"}),
    )


def _random_mean(each: Mapping[str, Any]) -> float | None:
    """Perplexity at the mean change under random keep-lists."""
    if each["before"] is None or not each["random"]:
        return None
    return each["before"] * math.exp(sum(each["random"]) / len(each["random"]))


def _short(value: float | None) -> str:
    return "no data" if value is None else f"{value:,.2f}"
