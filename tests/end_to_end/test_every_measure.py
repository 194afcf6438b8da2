"""Every measure's panel on the shipped checkpoints, in both themes; and knobs, which never run a model again."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, TimeoutError, expect

from analysis.measure import FAMILIES, get
from frontend import theme
from tests.end_to_end.conftest import Services
from tests.end_to_end.panels import ANSWER_MILLISECONDS, ask, last_steps, panel, ready
from tests.knobs import others

pytestmark = pytest.mark.browser

PLATES = "[...document.querySelectorAll('.plate[data-key]')]"
SETTLED = f"{PLATES}.every(p => ['done', 'refused', 'failed'].includes(p.dataset.state))"
WAITING = f"{PLATES}.filter(p => p.dataset.state !== 'done').map(p => ({{...p.dataset}}))"
DRAWN = f"{PLATES}.every(p => (p.querySelector('.js-plotly-plot')?.data?.length ?? 0) > 0)"
COLOURS = f"{PLATES}.map(p => p.querySelector('.js-plotly-plot').layout.template.layout.font.color.toLowerCase())"
LOOKS = (
    PLATES
    + """.map(p => {
    const plot = p.querySelector('.js-plotly-plot'), full = plot._fullLayout, colours = new Set();
    const hue = /^(#[0-9a-f]{6}|rgba?[(].*)$/i;
    const walk = (node) => {
        if (typeof node === 'string') return void (hue.test(node) && colours.add(node.toLowerCase()));
        if (!node || typeof node !== 'object' || ArrayBuffer.isView(node)) return;
        for (const [name, value] of Object.entries(node)) if (name !== 'customdata' && name !== 'text') walk(value);
    };
    walk([plot.data, plot.layout]);
    const lines = [full.xaxis, full.yaxis].map(axis => axis?.linecolor?.toLowerCase()).filter(Boolean);
    const scales = plot.data.flatMap(t => t.colorscale ?? t.marker?.colorscale ?? []).map(s => s[1].toLowerCase());
    const heat = plot.data.some(t => t.type === 'heatmap');
    return { measure: p.dataset.measure, plate: getComputedStyle(p).backgroundColor, colours: [...colours], lines,
             grounds: [full.paper_bgcolor, full.plot_bgcolor], scales, heat };
})"""
)
CLEAR = "rgba(0,0,0,0)"
READ = """plates => plates.map(p => ({
    measure: p.dataset.measure, state: p.dataset.state, told: p.querySelector('.plate-foot').innerText,
    caveats: p.querySelectorAll('.caveat').length, said: p.innerText }))"""


def catalogue(services: Services) -> list[dict]:
    """All measures as the API tells them."""
    return httpx.get(f"{services.api}/measures", timeout=30).json()["measures"]


def states_of_jobs(services: Services) -> dict[str, str]:
    """What every job has come to."""
    return {job["id"]: job["state"] for job in httpx.get(f"{services.api}/jobs", timeout=30).json()["jobs"]}


def assert_drawn_in(page: Page, tokens: dict[str, str]) -> None:
    """Plates, axes, scales and marks in the colours of this theme and in no others."""
    tokens = {name: colour.lower() for name, colour in tokens.items()}
    plate = tuple(int(tokens["surface"][at : at + 2], 16) for at in (1, 3, 5))
    ramps = {colour for name, colour in tokens.items() if name.startswith(("mag-", "sig-", "dif-"))}
    looks, ramps = page.evaluate(LOOKS), ramps | {tokens["surface"]}  # what is not there has the plate's own colour
    assert looks
    for look in looks:
        assert look["plate"] == f"rgb{plate}" and set(look["grounds"]) == {CLEAR}, look
        assert set(look["lines"]) <= {tokens["line"], tokens["line-strong"]}, look
        assert set(look["scales"]) <= ramps and (look["scales"] or not look["heat"]), look
        assert look["colours"] and set(look["colours"]) <= {*tokens.values(), CLEAR}, look


@pytest.mark.parametrize("family", FAMILIES)
def test_each_panel_of_a_page_is_drawn_with_all_that_must_stand_beside_it_in_both_themes(
    page: Page, services: Services, family: str
) -> None:
    ends, known = last_steps(services.api), {m["name"]: m for m in catalogue(services)}
    ready(page, f"/{family}?a={ends['free-s1']}&b={ends['aux-s1']}&prompts=few")
    page.get_by_role("button", name="Ask what is missing").click()
    try:
        page.wait_for_function(SETTLED, timeout=ANSWER_MILLISECONDS)
    except TimeoutError:
        pytest.fail(f"plates that wait: {page.evaluate(WAITING)}; jobs: {states_of_jobs(services)}")
    plates = page.locator(".plate[data-key]").evaluate_all(READ)
    assert {name for name, m in known.items() if m["family"] == family} <= {plate["measure"] for plate in plates}
    assert not [plate for plate in plates if plate["state"] != "done"]
    page.wait_for_function(DRAWN)
    for plate in plates:
        told = plate["told"]
        assert "null:" in told or "no null:" in told, told
        assert "interval:" in told or "no interval:" in told, told
        assert known[plate["measure"]]["source"] in told, told
        assert plate["caveats"] >= 1, told
    assert set(page.evaluate(COLOURS)) == {theme.LIGHT["ink-2"].lower()}
    assert_drawn_in(page, theme.LIGHT)
    page.keyboard.press("t")
    page.wait_for_function(f"{COLOURS}.every(c => c === '{theme.DARK['ink-2'].lower()}')")
    assert_drawn_in(page, theme.DARK)


def test_no_knob_of_any_measure_needs_the_model_again(services: Services) -> None:
    end = last_steps(services.api)["free-s1"]
    with httpx.Client(base_url=services.api, timeout=120) as api:
        for measure in catalogue(services):
            if measure["sides"]:
                continue
            asked = {"measure": measure["name"], "checkpoints": [end], "prompts": "few"}
            while api.post("/questions", json=asked | {"wait": 20}).status_code == 202:
                pass
            for knob in get(measure["name"]).knobs:
                for value in [knob.default, *others(knob)]:
                    told = api.post("/questions", json=asked | {"knobs": {knob.name: value}, "only_stored": True})
                    passes = 0 if told.status_code == 200 else told.json()["cost"]["passes"]
                    assert passes == 0, (measure["name"], knob.name, value)


def test_a_turned_knob_changes_the_figure_and_the_log_of_jobs_shows_no_pass(page: Page, services: Services) -> None:
    end = last_steps(services.api)["free-s1"]
    cells = "d => d.querySelector('.js-plotly-plot').calcdata[0][0].z.flatMap(row => [...row]).map(v => v ?? NaN)"
    ready(page, f"/specialisation?a={end}&prompts=few")
    before = ask(page, "domain_specialisation").evaluate(cells)
    known = {job["id"] for job in httpx.get(f"{services.api}/jobs", timeout=30).json()["jobs"]}
    panel(page, "domain_specialisation").get_by_role("button", name="token", exact=True).click()
    turned = panel(page, "domain_specialisation").get_by_role("button", name="token", exact=True)
    expect(turned).to_have_attribute("aria-pressed", "true")
    if panel(page, "domain_specialisation").get_attribute("data-state") == "not-asked":
        expect(panel(page, "domain_specialisation")).to_contain_text("Needs no model run")
    after = ask(page, "domain_specialisation").evaluate(cells)
    assert not np.allclose(before, after, equal_nan=True)
    jobs = httpx.get(f"{services.api}/jobs", timeout=30).json()["jobs"]
    # One job for the checkpoint, one for the step 0 beside it.
    assert {job["tokens"] for job in jobs if job["id"] not in known} == {0}
    assert max(job["tokens"] for job in jobs if job["checkpoints"] == [end]) > 0
