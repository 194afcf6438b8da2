"""The papers' experiments as repeated here: what was published, what the shipped runs give, and what that says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from frontend.client import Client
from frontend.folded import folded
from frontend.pages.head import page
from frontend.panel import plain_plate
from frontend.state import Material, PageState

LEAD = "Published effects, asked of the runs that ship or of small runs trained for it; what does not show is said."
TAGS = {
    "shows": "a",
    "does not show": "b",
    "cannot be tested at this size": "",
    "measured": "",
    "not run": "",
}
"""Colour of each verdict's tag; the word says it too."""
ASIDE = ("measured", "not run")
COLUMNS = ("quantity", "published", "ours", "interval", "verdict", "note")


async def layout(client: Client, state: PageState, material: Material) -> list:
    """A table for each experiment."""
    kept = await client.experiments()
    if not kept:
        return page("Experiments", LEAD, [plain_plate("No result ships", [html.P("data/experiments is empty.")])])
    return page("Experiments", LEAD, [_plate(each) for each in kept])


def _plate(kept: Mapping[str, Any]) -> html.Section:
    """What was published first; what nobody published, and what was not run, one click away."""
    judged = [row for row in kept["rows"] if row["verdict"] not in ASIDE]
    aside = [row for row in kept["rows"] if row["verdict"] in ASIDE]
    tables: list[Any] = [_table(judged)] if judged else []
    if aside:
        tables.append(
            html.Details([html.Summary(f"{len(aside)} more: {' and '.join(ASIDE)}"), folded([_table(aside)], "")])
        )
    return plain_plate(kept["title"], tables, reading=counted(kept["rows"]), notes=_notes(kept))


def _table(rows: list[Mapping[str, Any]]) -> html.Table:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in COLUMNS]))
    return html.Table([head, html.Tbody([_row(row) for row in rows])], className="facts-table")


def _notes(kept: Mapping[str, Any]) -> tuple[str, ...]:
    return (kept["source"], f"made {kept['made']} by: {kept['command']}")


def counted(rows: list[Mapping[str, Any]]) -> str:
    """How many rows have each verdict, in words."""
    found = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in TAGS}
    return f"Of {len(rows)} rows: " + ", ".join(f"{count} {verdict}" for verdict, count in found.items() if count) + "."


def _row(row: Mapping[str, Any]) -> html.Tr:
    interval = "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}"
    tag = html.Span(row["verdict"], className=f"tag {TAGS.get(row['verdict'], '')}".strip())
    return html.Tr(
        [
            html.Th(row["quantity"], scope="row"),
            html.Td(_number(row["published"])),
            html.Td(_number(row["ours"]), className="num"),
            html.Td(interval, className="num"),
            html.Td(tag),
            html.Td(noted(row), className="ink-3"),
        ]
    )


def noted(row: Mapping[str, Any]) -> str:
    """With the command that made a row, where it is not the table's."""
    return f"{row['note']}; made {row['made']} by: {row['command']}" if "command" in row else row["note"]


def _number(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"
