"""What lies in a closed menu: told to the browser as text, made into elements when the menu is first opened.

Every component on a page costs Dash time at every change of anything (each listens to the whole store); the menus of a
page of eight panels are more components than all the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from frontend.attributes import hyphened


def told(content: Any) -> str:
    """Components, and what else JSON holds, as the text that the browser makes them from."""
    return json.dumps(
        content, default=Component.to_plotly_json, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )


def folded(children: Sequence[Any], className: str) -> html.Div:
    """A frame whose content `assets/folded.js` makes at the first opening; plain elements and fields only."""
    return html.Div(className=className, **hyphened({"data-folded": told(list(children))}))
