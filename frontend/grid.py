"""Sortable tables. Colours are CSS variables, so the grid follows the theme without a switch of its own."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag

_PARAMETERS = (
    "{backgroundColor:'var(--surface)',foregroundColor:'var(--ink)',headerBackgroundColor:'var(--surface)',headerTextColor:'var(--ink-3)',"
    "borderColor:'var(--line)',rowBorder:true,wrapperBorder:false,headerFontWeight:500,fontSize:13,headerFontSize:11,rowHeight:34,"
    "headerHeight:30,headerColumnResizeHandleColor:'transparent',fontFamily:'inherit',oddRowBackgroundColor:'transparent',"
    "rowHoverColor:'var(--sunken)',selectedRowBackgroundColor:'var(--sunken)',columnBorder:false,cellHorizontalPadding:8}"
)


def table(
    name: Any, columns: list[dict[str, Any]], rows: list[dict[str, Any]], height: int | None = None
) -> dag.AgGrid:
    """An AG Grid in the product's look; without `height` it is as tall as its rows."""
    options = {
        "theme": {"function": f"themeQuartz.withParams({_PARAMETERS})"},
        "domLayout": "normal" if height else "autoHeight",
    }
    return dag.AgGrid(
        id=name,
        columnDefs=columns,
        rowData=rows,
        dashGridOptions=options,
        defaultColDef={"sortable": True, "resizable": True},
        style={"height": height, "width": "100%"},
    )
