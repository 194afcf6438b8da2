"""An answer as a table: the accessible twin of every figure."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, no_update

from frontend import grid
from frontend.client import Client, Refusal
from frontend.views import table

NUMBERS = {
    "type": "rightAligned",
    "valueFormatter": {"function": "params.value == null ? 'undefined' : d3.format('.4~g')(params.value)"},
}


def register(app: Dash, client: Client) -> None:
    """The table opens over the page for the answer whose menu was used."""

    @app.callback(
        Output("table-body", "children"),
        Output("table-modal", "opened"),
        Output("table-modal", "title"),
        Input("table-asked", "data"),
    )
    async def draw_table(asked: dict[str, Any] | None) -> tuple[Any, Any, Any]:
        if not asked:
            return no_update, no_update, no_update
        try:
            answer = await client.answer(asked["key"])
        except Refusal as refusal:
            return str(refusal), True, asked["title"]
        rows = table.rows(answer)
        columns = (
            [
                {"field": name, "flex": 1} | (NUMBERS if isinstance(value, float) else {})
                for name, value in rows[0].items()
            ]
            if rows
            else []
        )
        return (
            grid.table("answer-table", columns, rows, height=460),
            True,
            f"{asked['title']}: {len(rows):,} of {answer.values.size:,} values",
        )
