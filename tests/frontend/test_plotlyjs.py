"""The script that draws is the flat part of the plotly.js that the Python side speaks of, and Dash's graphs get it."""

import re
from pathlib import Path

import dash
import httpx
import pytest
from plotly.offline import get_plotlyjs_version

from frontend import plotlyjs
from frontend.app import create_app
from tests.frontend.fake_backend import create_fake


def test_the_bundle_is_of_the_version_whose_schema_the_views_are_held_to() -> None:
    told = re.search(r"plotly\.js \(cartesian - minified\) v(\S+)", plotlyjs.text()[:200])
    assert told and told[1] == get_plotlyjs_version()


def test_dash_still_asks_where_the_bundle_answers() -> None:
    """Dash writes the address into its renderer: another release may ask elsewhere, and get the whole one again."""
    renderer = Path(dash.__file__).parent / "dash-renderer" / "build" / "dash_renderer.min.js"
    assert f'"{plotlyjs.ASKED.removeprefix("/")}"' in renderer.read_text(encoding="utf-8")


@pytest.mark.anyio
async def test_a_page_gets_the_bundle_once_and_then_only_hears_that_it_still_stands() -> None:
    transport = httpx.ASGITransport(create_app("http://backend", httpx.ASGITransport(create_fake())))
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
        first = await client.get(plotlyjs.ASKED)
        assert first.text == plotlyjs.text() and first.headers["Content-Type"].startswith("text/javascript")
        again = await client.get(plotlyjs.ASKED, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
