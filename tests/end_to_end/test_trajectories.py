"""A run step by step: the slider by keyboard, play, both themes, and no request for any of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from tests.end_to_end.conftest import Services
from tests.end_to_end.panels import ANSWER_MILLISECONDS, ask, last_steps, panel, ready
from tests.end_to_end.test_accessible import violations

pytestmark = pytest.mark.browser

MEASURES = ("router_row_map", "expert_load", "living_experts")
SHOWN = """d => { const g = d.querySelector('.js-plotly-plot');
    return g.data.filter(t => t.name === 'step shown').map(t => JSON.stringify([t.x, t.y])).join() }"""
FRAME = """d => { const g = d.querySelector('.js-plotly-plot'), at = g.layout.meta.steps - 1; return [0, at].map(s =>
    g._transitionData._frames.find(f => f.name === String(s)).data.map(t => JSON.stringify([t.x, t.y])).join()) }"""


@pytest.fixture
def calm(browser: Browser, services: Services) -> Iterator[Page]:
    """A reader who wants no motion."""
    context = browser.new_context(base_url=services.pages, reduced_motion="reduce")
    context.set_default_timeout(90_000)
    opened, wrong = context.new_page(), []
    opened.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type == "error" else None)
    opened.on("pageerror", lambda e: wrong.append(f"exception: {e}"))
    yield opened
    context.close()
    assert not wrong, "\n".join(wrong)


def asked(page: Page, services: Services, query: str = "") -> dict[str, Locator]:
    """The page of the run `free-s1`, these of its panels answered."""
    ready(page, f"/trajectories?a={last_steps(services.api)['free-s1']}&prompts=few{query}")
    for measure in MEASURES:
        if panel(page, measure).get_attribute("data-state") == "not-asked":
            panel(page, measure).get_by_role("button", name="Ask").click()
    for measure in MEASURES:
        expect(panel(page, measure)).to_have_attribute("data-state", "done", timeout=ANSWER_MILLISECONDS)
    return {measure: ask(page, measure) for measure in MEASURES}


def requests(page: Page) -> list[str]:
    """What the page asks its server for from now on, but for the slow poll of jobs, what it says, and the icon."""
    sent: list[str] = []

    def seen(request: Request) -> None:
        if not re.search("/api/v1/jobs|favicon", request.url) and "jobs-data" not in (request.post_data or ""):
            sent.append(request.url)

    page.on("request", seen)
    return sent


def test_the_slider_moves_every_figure_by_keyboard_without_a_request(page: Page, services: Services) -> None:
    plates = asked(page, services)
    ends = {name: plate.evaluate(FRAME) for name, plate in plates.items()}
    assert {name: plate.evaluate(SHOWN) for name, plate in plates.items()} == {n: e[1] for n, e in ends.items()}
    slider, sent = page.get_by_role("slider", name="Step"), requests(page)
    slider.focus()
    page.keyboard.press("Home")
    for name, plate in plates.items():
        page.wait_for_function(f"([d, want]) => ({SHOWN})(d) === want", arg=[plate.element_handle(), ends[name][0]])
    expect(slider).to_have_attribute("aria-valuetext", "step 0, 1 of 8")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**at=320**")
    expect(page.locator("#step-told")).to_have_text("step 320, 4 of 8")
    assert not sent
    kept = plates["router_row_map"].evaluate(SHOWN)
    assert kept not in ends["router_row_map"]
    page.reload()
    assert ask(page, "router_row_map").evaluate(SHOWN) == kept
    expect(page.get_by_role("slider", name="Step")).to_have_attribute("aria-valuetext", "step 320, 4 of 8")


def test_who_wants_no_motion_gets_one_step_for_each_press(calm: Page, services: Services) -> None:
    asked(calm, services, "&at=3000")
    button = calm.get_by_role("button", name="Next step")
    for step, words in (("6000", "step 6,000"), ("12000", "step 12,000"), ("0", "step 0")):
        button.press("Enter")
        calm.wait_for_url(f"**at={step}")
        expect(calm.locator("#live-region")).to_have_text(words)
    calm.wait_for_timeout(1200)
    assert calm.url.endswith("at=0")


def test_play_runs_to_the_last_step_and_stops_and_can_be_paused(page: Page, services: Services) -> None:
    plates = asked(page, services, "&at=3000")
    last, sent = plates["expert_load"].evaluate(FRAME)[1], requests(page)
    page.get_by_role("button", name="Play").click()
    page.wait_for_url("**at=12000")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.wait_for_function(f"([d, want]) => ({SHOWN})(d) === want", arg=[plates["expert_load"].element_handle(), last])
    page.get_by_role("button", name="Play").click()  # from the last step it begins anew
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    stopped = page.locator("#step-told").inner_text()
    page.wait_for_timeout(1200)
    assert page.locator("#step-told").inner_text() == stopped and not sent


def test_both_themes_are_accessible_and_keep_the_step(page: Page, services: Services) -> None:
    plates = asked(page, services, "&at=80")
    before = {name: plate.evaluate(SHOWN) for name, plate in plates.items()}
    assert not violations(page)
    page.wait_for_function(
        "document.querySelector('.js-plotly-plot').layout.template.layout.font.color.toLowerCase() === '#b9bfca'"
    )
    assert {name: plate.evaluate(SHOWN) for name, plate in plates.items()} == before


def test_the_axis_is_told_in_tokens_where_the_run_says_them(page: Page, services: Services) -> None:
    plates = asked(page, services)
    page.get_by_role("button", name="tokens", exact=True).click()
    page.wait_for_url("**k.run.axis=tokens**")
    expect(page.locator("#step-told")).to_have_text("24.6M tokens, 8 of 8")
    told = "d => d.querySelector('.js-plotly-plot').layout.xaxis.ticktext.at(-1)"
    page.wait_for_function(f"d => ({told})(d) === '24.6M<br>last'", arg=plates["expert_load"].element_handle())
