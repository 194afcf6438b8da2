"""Three checkpoints on one page: chosen, pinned, filtered, and taken away as files."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.end_to_end.conftest import Services
from tests.end_to_end.panels import ask, last_steps, panel, ready, traces

pytestmark = pytest.mark.browser


def test_a_third_checkpoint_is_added_made_the_baseline_and_another_removed(page: Page, services: Services) -> None:
    ends = last_steps(services.api)
    ready(page, f"/compare?a={ends['free']}&b={ends['none']}")
    strip = page.locator("#compared")
    strip.locator("summary[aria-label^='Checkpoint C']").click()
    strip.locator(".choice[data-name=kmeans] button").last.click()
    page.wait_for_url(f"**c={ends['kmeans']}**")
    expect(panel(page, "load_violation")).to_have_attribute("data-state", "not-asked")
    plate = ask(page, "load_violation")
    lines = [t["name"] for t in traces(plate)]
    assert [name for name in lines if name.startswith(("free", "none", "kmeans"))][-1].startswith("free")
    assert sum(name.startswith("interval of") for name in lines) == 3
    strip.get_by_role("button", name="Make kmeans").click()
    page.wait_for_url(f"**a={ends['kmeans']}**")
    assert f"c={ends['free']}" in page.url and f"b={ends['none']}" in page.url
    strip.get_by_role("button", name="Remove free").click()
    page.wait_for_function("!location.search.includes('c=')")
    expect(strip.locator("summary[aria-label^='Checkpoint C']")).to_contain_text("choose")
    page.reload()
    expect(page.locator("#compared")).to_contain_text("kmeans")
    expect(panel(page, "load_violation")).to_have_attribute("data-state", "done")


def test_a_difference_is_filtered_by_the_address_and_taken_away_as_files(page: Page, services: Services) -> None:
    ends = last_steps(services.api)
    ready(page, f"/compare?a={ends['free']}&b={ends['none']}")
    plate = ask(page, "load_difference")
    page.locator("#compared").get_by_role("button", name="beyond chance").click()
    page.wait_for_url("**beyond=only**")
    expect(plate).to_contain_text("of 32 cells differ from chance. Dimmed: p above 0.05")
    expect(panel(page, "expert_load")).not_to_have_attribute("data-state", "failed")
    with page.expect_download() as report:
        page.locator("#compared").get_by_role("link", name="Report").click()
    told = report.value.path().read_text("utf-8")
    assert (
        "<h2>Load difference</h2>" in told
        and "Plotly.react" in told
        and report.value.suggested_filename.endswith(".html")
    )
    plate.locator("summary[aria-label^='Menu']").click()
    with page.expect_download() as table:
        plate.get_by_role("link", name="LaTeX").click()
    tex = table.value.path().read_text("utf-8")
    assert (
        r"\toprule" in tex
        and "Unit: difference of load over uniform" in tex
        and table.value.suggested_filename.endswith(".tex")
    )
