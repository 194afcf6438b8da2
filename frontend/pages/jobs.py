"""What runs, waits, failed and is done."""

from __future__ import annotations

from dash import html

from frontend.client import Client
from frontend.joblist import listing
from frontend.pages.head import page
from frontend.panel import plain_plate
from frontend.state import Material, PageState


async def layout(client: Client, state: PageState, material: Material) -> list:
    """The list of the drawer, at full width; the browser keeps it fresh."""
    jobs = await client.jobs()
    body = html.Div(listing(jobs, material), id="page-jobs")
    return page(
        "Jobs",
        "Everything asked that the store could not answer at once. Closing the page stops nothing.",
        [plain_plate("Queue", [body])],
    )
