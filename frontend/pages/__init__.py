"""One file per page: `layout(client, state, material)`.

A family of measures without a file gets its page from the catalogue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from frontend.client import Client
from frontend.pages import (
    checkpoints,
    compare,
    coupling,
    experiments,
    family,
    function,
    jobs,
    live,
    overview,
    prompts,
    representation,
    router,
    routing,
    specialisation,
    tokens,
    trajectories,
    whatif,
)
from frontend.state import Material, PageState

Layout = Callable[[Client, PageState, Material], Awaitable[Any]]

PAGES: dict[str, Layout] = {
    "/": overview.layout,
    "/checkpoints": checkpoints.layout,
    "/prompts": prompts.layout,
    "/routing": routing.layout,
    "/router": router.layout,
    "/coupling": coupling.layout,
    "/function": function.layout,
    "/representation": representation.layout,
    "/specialisation": specialisation.layout,
    "/trajectories": trajectories.layout,
    "/compare": compare.layout,
    "/jobs": jobs.layout,
    "/live": live.layout,
    "/tokens": tokens.layout,
    "/experiments": experiments.layout,
    "/whatif": whatif.layout,
}


def page_of(path: str) -> Layout:
    """The page at this path."""
    return PAGES.get(path.rstrip("/") or "/", family.layout)
