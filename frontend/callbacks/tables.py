"""An answer as a table: the accessible twin of every figure."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, no_update

from frontend import grid
from frontend.answer import Answer
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
            answers = [await client.answer(key) for key in asked["key"].split()]
        except Refusal as refusal:
            return str(refusal), True, asked["title"]
        rows = table.rows(answers[0]) if len(answers) == 1 else [row for one in answers for row in _named(one)]
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
            f"{asked['title']}: {len(rows):,} of {sum(one.values.size for one in answers):,} values",
        )


def _named(answer: Answer) -> list[dict[str, Any]]:
    """The rows of one of several answers, each with the checkpoint it is of, or the two."""
    own = " and ".join(one["id"] for one in answer.provenance["checkpoints"])
    return [{"checkpoint": own} | row for row in table.rows(answer, table.MOST_ROWS // 8)]
