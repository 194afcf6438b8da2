"""The plotly.js that draws every figure: its bundle of flat axes, a third of the whole one's bytes and of its start.

The whole one takes longer to start than everything else on a page together (maps, solids and WebGL that no view draws).
`assets/plotly-cartesian.min.js` is npm's plotly.js-cartesian-dist-min, unchanged, of the version that plotly brings.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

FILE = Path(__file__).parent / "assets" / "plotly-cartesian.min.js"
ASKED = "/_dash-component-suites/plotly/package_data/plotly.min.js"
"""Where Dash's graphs ask for the whole one; this route must stand before Dash's own."""
_FILES = StaticFiles(directory=FILE.parent)


def text() -> str:
    """The script, for a file that must open offline."""
    return FILE.read_text(encoding="utf-8")


async def serve(request: Request) -> Response:
    """The script to a page. The address says no version, so a browser asks each time whether its copy still stands."""
    response = await _FILES.get_response(FILE.name, request.scope)
    response.headers["Cache-Control"] = "no-cache"
    return response
