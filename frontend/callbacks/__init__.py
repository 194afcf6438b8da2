"""What happens on the page.

Every server callback is a coroutine: a plain function would hold the event loop for everyone.
"""

from __future__ import annotations

from dash import Dash

from frontend.callbacks import appearance, compare, jobs, live, material, pages, steps, tables, traces, whatif
from frontend.client import Client


def register(app: Dash, client: Client) -> None:
    """Wire all callbacks of the app to this backend."""
    for room in (appearance, pages, compare, jobs, live, material, steps, tables, traces, whatif):
        room.register(app, client)
