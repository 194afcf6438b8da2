"""The route that fills panels: what each line says, what is left out, and what a refusal leaves standing."""

import json

import httpx
import pytest

from frontend.app import create_app
from frontend.client import Client
from frontend.panels import filled
from frontend.places import Place
from tests.frontend.fake_backend import create_fake

pytestmark = pytest.mark.anyio
AUX = "?a=aux/step-02000"


@pytest.fixture
async def empty():
    made = Client("http://fake", httpx.ASGITransport(create_fake()))
    yield made
    await made.close()


def wanted(measure, **more):
    """A panel as the browser asks for it."""
    return {"place": Place(measure).stored()} | more


async def lines(client, *panels, search=AUX):
    """Index to content, as sent."""
    return {line["index"]: line async for line in filled(client, "/routing", search, list(panels))}


def state_of(content):
    return content["plate"].to_plotly_json()["props"]["data-state"]


async def test_a_request_that_another_sites_page_could_send_is_refused():
    pages = httpx.ASGITransport(create_app("http://fake", httpx.ASGITransport(create_fake())))
    body = json.dumps({"path": "/routing", "search": AUX, "panels": [wanted("load_violation", ask=True)]})
    async with httpx.AsyncClient(transport=pages, base_url="http://pages") as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            assert (await http.post("/panels", content=body, headers={"content-type": kind})).status_code == 415


async def test_a_request_for_many_places_brings_one_line_of_json_for_each():
    transport = httpx.ASGITransport(create_fake(everything_stored=True))
    pages = httpx.ASGITransport(create_app("http://fake", transport))
    body = {"path": "/routing", "search": AUX, "panels": [wanted("load_violation"), wanted("coactivation")]}
    async with httpx.AsyncClient(transport=pages, base_url="http://pages") as http:
        sent = (await http.post("/panels", json=body)).text.splitlines()
    told = {line["index"]: line for line in map(json.loads, sent)}
    assert sorted(told) == [0, 1] and {t["plate"]["props"]["data-state"] for t in told.values()} == {"done"}
    assert told[1]["figure"]["data"][0]["type"] == "heatmap"


async def test_what_a_panel_shows_already_is_not_sent_again_and_what_the_url_changed_is(full):
    first = await lines(full, wanted("load_violation"), wanted("planted_scalar"))
    known = [wanted(name, of=first[i]["of"]) for i, name in enumerate(("load_violation", "planted_scalar"))]
    assert await lines(full, *known) == {}
    assert list(await lines(full, *known, search=f"{AUX}&layer=2")) == [0]
    assert list(await lines(full, *known, search=f"{AUX}&k.load_violation.count=served")) == [0]
    assert list(await lines(full, *known, search="?a=free/step-02000")) == [0, 1]


async def test_looking_starts_nothing_and_asking_starts_a_job_for_each_question(empty):
    assert state_of((await lines(empty, wanted("load_violation")))[0]) == "not-asked"
    assert await empty.jobs() == []
    asked = await lines(empty, wanted("load_violation", ask=True), wanted("expert_load", ask=True))
    assert {state_of(content) for content in asked.values()} == {"running"}
    assert len(await empty.jobs()) == 4


async def test_a_job_that_failed_is_told_where_it_was_waited_for(empty):
    told = (await lines(empty, wanted("load_violation", failed=["The worker was killed."])))[0]
    assert state_of(told) == "failed" and told["figure"] is None


async def test_a_refusal_keeps_the_old_figure_and_its_height_and_draws_none_where_there_was_none(full):
    kept, none = (
        await lines(full, wanted("load_violation", height=300), wanted("load_violation"), search="?a=no/1")
    ).values()
    assert state_of(kept) == state_of(none) == "refused"
    assert "figure" not in kept and kept["height"] == 300 and none["figure"] is None


async def test_without_a_backend_every_panel_says_so():
    away = Client("http://127.0.0.1:9")
    told = await lines(away, wanted("load_violation"), wanted("expert_load"))
    assert [state_of(content) for content in told.values()] == ["refused", "refused"]
    assert "does not answer" in json.dumps(told[0]["plate"].to_plotly_json(), default=lambda c: c.to_plotly_json())
    await away.close()
