"""The form that brings a trace: what the backend asks for is marked, and what came of it is told, never as HTML."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from frontend.app import create_app
from frontend.client import Client
from frontend.pages import checkpoints, traceform
from frontend.state import Material, parse
from tests.frontend.fake_backend import create_fake
from tests.frontend.planted import CHECKPOINTS, MEASURES, SETS

pytestmark = pytest.mark.anyio
MATERIAL = Material(tuple(CHECKPOINTS), tuple(SETS), tuple(MEASURES))
KEPT = {
    "id": "olmoe",
    "trace": "counts",
    "moe_layers": 16,
    "experts": 64,
    "top_k": 8,
    "soft": False,
    "prompts": "texts",
    "statistics": ["prompt_counts"],
    "notes": ["counts alone: <b>nothing</b> more"],
}


async def told(report: dict[str, Any] | None) -> dict[str, Any]:
    """What the page's own callback sets when this report comes."""
    server = create_app("http://fake", httpx.ASGITransport(create_fake()))
    (output,) = [key for key in server.state.dash.callback_map if "trace-told" in key]
    outputs = [
        {"id": one.rpartition(".")[0], "property": one.rpartition(".")[2]} for one in output.strip(".").split("...")
    ]
    given = {"id": "trace-report", "property": "data", "value": report}
    body = {"output": output, "outputs": outputs, "inputs": [given], "changedPropIds": ["trace-report.data"]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://pages") as http:
        await http.get("/")
        reply = await http.post("/_dash-update-component", json=body | {"state": []})
    return reply.json()["response"]


async def test_what_the_file_leaves_open_is_asked_in_its_own_field() -> None:
    drawn = await told({"error": "a.json does not say how many experts a token chooses; give --k.", "asks": "k"})
    marked = [key for key, each in drawn.items() if "asked" in each.get("className", "")]
    assert marked == ["trace-field-k"] and drawn["trace-open"]["open"] is True
    assert "a.json does not say how many experts" in json.dumps(drawn["trace-told"])


async def test_a_refusal_that_no_option_settles_marks_nothing_and_leaves_the_form_as_it_is() -> None:
    drawn = await told({"error": "a.csv, row 6: expert is 'x'; it must be a number.", "asks": None})
    assert "trace-open" not in drawn and not any("asked" in each.get("className", "") for each in drawn.values())
    assert "row 6" in json.dumps(drawn["trace-told"])


async def test_an_import_is_told_with_its_shape_and_what_it_says_of_itself() -> None:
    shown = json.dumps((await told({"kept": KEPT}))["trace-told"])
    for part in ("olmoe is imported (counts)", "16 \\u00d7 64, top-8", "prompt_counts", "its prompts texts"):
        assert part in shown, part
    assert "<b>nothing</b>" in shown and "dangerously" not in shown


async def test_every_option_of_an_import_has_a_field_and_the_backends_formats_are_offered() -> None:
    client = Client("http://fake", httpx.ASGITransport(create_fake()))
    page = await checkpoints.layout(client, parse("/checkpoints", "", MATERIAL), MATERIAL)
    await client.close()
    shown = json.dumps(page, default=lambda each: each.to_plotly_json())
    for name in ("name", *traceform.FIELDS):
        assert f'"name": "{name}"' in shown and f'"trace-field-{name}"' in shown, name
    assert "counts: matrices <i>of</i> counts" in shown and '"value": "four-tasks"' in shown
