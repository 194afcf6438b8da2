"""axe-core on every page in both themes, and the landmarks a keyboard or screen reader starts from."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.end_to_end.panels import SETTLED, ask, open_panel, ready

pytestmark = pytest.mark.browser

PAGES = (
    "/", "/checkpoints", "/prompts", "/routing", "/router", "/compare", "/jobs", "/tokens", "/live", "/experiments",
    "/whatif", "/coupling", "/function", "/representation", "/specialisation", "/trajectories",
)  # fmt: skip


def test_axe_finds_nothing_on_any_page_in_light_and_dark(page: Page) -> None:
    """From page to page by the rail, as a reader goes: to open each anew takes longer than axe."""
    ready(page, PAGES[0])
    links = page.locator(".rail-link")
    rail = links.evaluate_all("links => links.map(each => each.getAttribute('href').split('?')[0])")
    assert set(rail) == set(PAGES), "a page that is not looked at"
    found = {PAGES[0]: violations(page)}
    for path in PAGES[1:]:
        before = page.locator("h1").inner_text()
        page.locator(f".rail-link[href='{path}'], .rail-link[href^='{path}?']").click()
        page.wait_for_function("before => document.querySelector('main h1')?.innerText !== before", arg=before)
        page.wait_for_function(SETTLED)
        found[path] = violations(page)
    wrong = [f"{path}, {violation}" for path, each in found.items() for violation in each]
    assert not wrong, "\n".join(wrong)


def test_axe_finds_nothing_where_figures_are_drawn(page: Page) -> None:
    open_panel(page, "router_cosine")
    ask(page, "router_common_mode")
    found = violations(page)
    assert not found, "\n".join(found)


def violations(page: Page) -> list[str]:
    """What axe finds in the theme that is on, and then in the other."""
    found, now = [], "document.documentElement.dataset.mantineColorScheme"
    first = page.evaluate(now)
    assert first in ("light", "dark")
    for theme in (first, "dark" if first == "light" else "light"):
        if theme != first:
            page.keyboard.press("t")
            page.wait_for_function(f"{now} === '{theme}'")
        page.wait_for_function(
            "document.getAnimations().every(each => each.playState !== 'running')"
        )  # colours fade over
        if page.evaluate("typeof axe === 'undefined'"):  # it stays with the document from page to page
            page.evaluate(Axe().axe_script)
        for violation in page.evaluate("axe.run({resultTypes: ['violations']}).then(found => found.violations)"):
            nodes = "; ".join(n["html"][:200] for n in violation["nodes"][:3])
            found.append(f"{theme}: {violation['id']}: {violation['help']}: {nodes}")
    return found


def test_a_page_has_its_language_one_heading_and_a_way_past_the_rail(page: Page) -> None:
    ready(page, "/router")
    assert page.locator("html").get_attribute("lang") == "en"
    expect(page.locator("h1")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to figures")).to_be_focused()


def test_open_things_close_with_escape(page: Page) -> None:
    ready(page, "/checkpoints")
    page.locator("#chip-a summary").click()
    expect(page.locator("#chip-a")).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(page.locator("#chip-a")).not_to_have_attribute("open", "")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard")).to_have_count(0)
