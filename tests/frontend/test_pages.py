"""Pages and panels against the fake backend: states, sentences, permalinks; no browser."""

import ast
import inspect
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from frontend.app import create_app
from frontend.callbacks.pages import content, frame
from frontend.client import Client, Job, Refusal
from frontend.filling import compose, failed, fill
from frontend.pages.checkpoints import facts
from frontend.panel import plate
from frontend.places import Place, questions, sides_of
from frontend.state import Material, material_of, parse
from tests.frontend.fake_backend import create_fake
from tests.frontend.planted import CHECKPOINTS, MEASURES, SETS

pytestmark = pytest.mark.anyio
MATERIAL = Material(tuple(CHECKPOINTS), tuple(SETS), tuple(MEASURES))
LOAD = Place("expert_load")
HERE = ("/routing", "")


async def filled_at(client, place, location=HERE, ask=False):
    """The place's panel at this address."""
    return await fill(client, place, parse(*location, MATERIAL), MATERIAL, ask)


def with_steps(material):
    """The same material with a measure of ordered checkpoints in its catalogue."""
    known = {"name": "router_saturation", "sides": ["steps"], "reads": ["prompt_counts"], "knobs": []}
    return replace(material, measures=(*material.measures, known))


@pytest.fixture
async def client():
    made = Client("http://fake", httpx.ASGITransport(create_fake()))
    yield made
    await made.close()


def walk(component):
    """All components of a tree."""
    if isinstance(component, list | tuple):
        return [c for part in component for c in walk(part)]
    children = getattr(component, "children", None)
    return [component, *walk(children)] if hasattr(component, "to_plotly_json") else []


def slots_of(page):
    """Key to content of each slot on the page, as the browser reads it."""
    slots = [c for c in walk(page) if hasattr(c, "data-panel")]
    return {c.id["key"]: json.loads(c.to_plotly_json()["props"]["data-panel"]) for c in slots}


def words_of(component):
    if isinstance(component, list | tuple):
        return " ".join(words_of(c) for c in component)
    if isinstance(component, str):
        return component
    return words_of(getattr(component, "children", None) or [])


def test_every_server_callback_is_a_coroutine():
    server = create_app("http://fake", httpx.ASGITransport(create_fake()))
    callbacks = [c["callback"] for c in server.state.dash.callback_map.values() if "callback" in c]
    assert len(callbacks) >= 8
    plain = [f for f in callbacks if not inspect.iscoroutinefunction(f)]
    assert not plain


def test_an_imported_trace_says_what_it_decides_in_place_of_an_adapter():
    trace = CHECKPOINTS[0] | {"id": "olmoe", "trace": "counts", "prompts": "texts", "statistics": ["prompt_counts"]}
    shown = str(facts("olmoe", replace(MATERIAL, checkpoints=(trace,))))
    assert "imported trace (counts)" in shown and "a trace of the prompts texts, which decides prompt_counts" in shown
    assert "not yet verified" not in shown and "not yet verified" in str(facts(CHECKPOINTS[0]["id"], MATERIAL))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/checkpoints",
        "/prompts",
        "/routing",
        "/router",
        "/compare",
        "/jobs",
        "/tokens",
        "/live",
        "/experiments",
        "/coupling",
        "/trajectories",
        "/typo",
    ],
)
async def test_every_page_has_one_h1_and_the_shell_around_it(client, path):
    page = await content(client, path, "")
    assert [c.__class__.__name__ for c in walk(page)].count("H1") == 1
    rail, context = await frame(client, path, "")
    assert "Overview" in words_of(rail) and "Layer" in words_of(context)


async def test_a_measure_no_page_knows_appears_on_its_familys_page(client):
    assert "planted_new_measure-one" in slots_of(await content(client, "/routing", ""))
    assert "planted_scalar-one" in slots_of(await content(client, "/coupling", ""))


def test_only_page_headers_name_measures():
    names = {m["name"] for m in MEASURES}
    root = Path(__file__).resolve().parents[2] / "frontend"
    for file in root.rglob("*.py"):
        if file.parent.name == "pages":
            continue
        strings = {
            n.value
            for n in ast.walk(ast.parse(file.read_text()))
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        assert not strings & names, file


async def test_what_is_not_asked_shows_its_price_and_one_button(client):
    filled = await filled_at(client, LOAD)
    section = plate(filled.panel)
    assert filled.panel.state == "not-asked" and filled.figure is None
    assert "Not asked yet" in words_of(section) and "8,192 tokens" in words_of(section)
    assert [c for c in walk(section) if getattr(c, "data-act", None) == "ask"]


async def test_asking_puts_the_question_for_the_checkpoint_and_its_step_0(client):
    filled = await filled_at(client, LOAD, ask=True)
    assert filled.panel.state == "running" and len(filled.panel.jobs) == 2
    assert [a.question.checkpoints[0] for a in filled.panel.asked] == ["aux/step-02000", "aux/step-00000"]


async def test_a_stored_answer_is_drawn_with_all_that_must_stand_beside_it(full):
    filled = await filled_at(full, LOAD)
    text = words_of(plate(filled.panel))
    assert filled.panel.state == "done" and filled.figure is not None
    for said in (
        "load over uniform",
        "4,096 tokens",
        "null: planted uniform routing",
        "95%",
        "planted for tests",
        "A planted number.",
        "step 0",
    ):
        assert said in text, said


async def test_the_first_panels_come_with_their_page_if_the_store_has_them(full, client):
    laid = slots_of(await content(full, "/routing", ""))
    assert [bool(c.get("figure")) for c in laid.values()][:3] == [True, True, False]
    assert laid["expert_load-one"]["figure"]["data"] and laid["expert_load-one"]["plate"]["type"] == "Section"
    assert "is-loading" in laid["signature_similarity-one"]["plate"]["props"]["className"]
    assert not any(c.get("figure") for c in slots_of(await content(client, "/routing", "")).values())


async def test_a_page_laid_anew_is_never_taken_for_the_one_before(full):
    first, again = [
        {getattr(c, "data-laid") for c in walk(await content(full, "/routing", "")) if hasattr(c, "data-laid")}
        for _ in range(2)
    ]
    assert len(first) == len(again) > 3 and not first & again


async def test_the_menu_is_told_as_text_that_the_browser_makes_into_elements(full):
    section = plate((await filled_at(full, LOAD)).panel)
    folded = [
        json.loads(c.to_plotly_json()["props"]["data-folded"]) for c in walk(section) if hasattr(c, "data-folded")
    ]
    told = json.dumps(folded, ensure_ascii=False)
    assert len(folded) == 1
    assert "What does this mean?" in told and "format=csv" in told and "moe-geometry ask" in told


async def test_a_dense_checkpoint_is_refused_by_name_on_the_plate(full):
    filled = await filled_at(full, LOAD, ("/routing", "?a=dense/step-02000"))
    assert filled.panel.state == "refused" and "dense/step-02000 is dense" in words_of(plate(filled.panel))


async def test_an_unknown_checkpoint_is_refused_with_the_way_out(full):
    filled = await filled_at(full, LOAD, ("/routing", "?a=gone/step-1"))
    assert "“gone/step-1” is not loaded. Choose one" in filled.panel.message


async def test_a_failed_job_says_so_where_it_was_asked(client):
    told = failed(await filled_at(client, LOAD), ["The worker ran out of memory."])
    assert told.panel.state == "failed"
    assert "The worker ran out of memory." in words_of(plate(told.panel)) and "Ask again" in words_of(plate(told.panel))


async def test_a_measure_of_steps_is_asked_of_all_steps_of_the_run_in_order(full):
    state = parse("/trajectories", "?a=free/step-02000", MATERIAL)
    asked = questions(Place("router_saturation", sides="steps"), state, with_steps(MATERIAL))
    steps = asked[0].question.checkpoints
    assert len(steps) > 2 and list(steps) == sorted(steps) and all(name.startswith("free/") for name in steps)
    assert sides_of({"sides": ["steps"]}) == "steps"
    alone = replace(MATERIAL, checkpoints=tuple(c for c in MATERIAL.checkpoints if c["id"] == "free/step-02000"))
    with pytest.raises(Refusal, match="no other steps loaded"):
        questions(Place("router_saturation", sides="steps"), state, with_steps(alone))


async def test_a_measure_of_weights_is_asked_without_prompts():
    asked = questions(Place("router_cosine"), parse("/router", "", MATERIAL), MATERIAL)
    assert asked[0].question.prompts is None


async def test_the_overview_asks_every_run_that_has_a_router(full):
    filled = await filled_at(full, Place("load_violation", sides="runs"), ("/", ""))
    assert {s.label for s in filled.panel.sides} == {"aux 2,000", "free 2,000", "kmeans 2,000", "none 2,000"}
    assert sum(s.role == "control" for s in filled.panel.sides) == 4


async def test_a_figure_of_many_runs_grows_but_never_from_controls_alone(full):
    filled = await filled_at(full, Place("load_violation", sides="runs"), ("/", ""))
    found = list(zip(filled.panel.asked, (s.answer for s in filled.panel.sides), strict=True))
    running = [(asked, Job(str(i), "")) for i, (asked, _) in enumerate(found)]
    place = filled.panel.place
    state = parse("/", "", MATERIAL)
    only_controls = [pair if pair[0].role == "control" else job for pair, job in zip(found, running, strict=True)]
    assert compose(place, state, MATERIAL, only_controls).panel.state == "running"
    one_run = [found[0], *running[1:]]
    grown = compose(place, state, MATERIAL, one_run)
    assert grown.panel.state == "partial" and grown.figure is not None and len(grown.panel.sides) == 1


async def test_without_a_backend_the_page_says_so_and_the_rail_stays():
    away = Client("http://127.0.0.1:9")
    page = await content(away, "/routing", "")
    assert "127.0.0.1:9 does not answer" in words_of(page) and "Try again" in words_of(page)
    rail, _ = await frame(away, "/routing", "")
    assert "Routing" in words_of(rail)
    await away.close()


def test_the_url_holds_the_state_and_links_keep_what_was_chosen():
    state = parse("/routing", "?a=free/step-00500&layer=2&k.expert_load.count=served", MATERIAL)
    assert (state.a, state.layer, state.knobs["expert_load.count"]) == ("free/step-00500", 2, "served")
    assert state.url("/compare") == "/compare?a=free/step-00500&layer=2"
    asked = questions(LOAD, state, MATERIAL)
    assert asked[0].question.knobs == {"count": "served"}


def test_what_the_url_leaves_open_is_two_different_routers_at_their_last_step():
    state = parse("/", "", MATERIAL)
    assert (state.a, state.b, state.prompts) == ("aux/step-02000", "free/step-02000", "four-tasks")


async def test_the_material_is_what_the_backend_holds(client):
    assert (await material_of(client)).start_of("free/step-02000")["id"] == "free/step-00000"
