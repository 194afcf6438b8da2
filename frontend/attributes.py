"""HTML attributes with a hyphen in their name, which Python cannot write as keywords."""

from __future__ import annotations

from typing import Any


def hyphened(names: dict[str, str]) -> dict[str, Any]:
    """The attributes as keywords for a component: `html.Div(**hyphened({"aria-label": "Jobs"}))`."""
    return names
