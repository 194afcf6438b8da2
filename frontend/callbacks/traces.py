"""What came of importing a trace, and which field the backend asks for."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, no_update

from frontend.client import Client
from frontend.pages import traceform


def register(app: Dash, client: Client) -> None:
    """The browser sends the file itself; its reply comes through the `trace-report` store."""

    @app.callback(
        Output("trace-told", "children"),
        Output("trace-open", "open"),
        *(Output(f"trace-field-{name}", "className") for name in traceform.FIELDS),
        Input("trace-report", "data"),
    )
    async def draw_report(report: dict[str, Any] | None) -> tuple[Any, ...]:
        asks = (report or {}).get("asks")
        marks = (traceform.field(name, asks) for name in traceform.FIELDS)
        return (traceform.told(report), True if asks in traceform.FIELDS else no_update, *marks)
