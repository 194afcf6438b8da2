"""A question under way: its stage on the plate and in the drawer, and the way to stop it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.end_to_end.conftest import Services
from tests.end_to_end.panels import last_steps, panel, ready

pytestmark = pytest.mark.browser


def test_a_running_question_shows_its_stage_and_can_be_cancelled(page: Page, services: Services) -> None:
    query = f"?a={last_steps(services.api)['none']}&prompts=validation"
    ready(page, f"/routing{query}")
    plate = panel(page, "load_violation")
    expect(plate).to_contain_text("Not asked yet")
    expect(plate).to_contain_text("tokens")
    plate.get_by_role("button", name="Ask").click()
    expect(plate).to_have_attribute("data-state", "running")
    expect(plate.get_by_role("progressbar")).to_be_visible()
    page.keyboard.press("j")
    drawer = page.get_by_role("dialog", name="Jobs")
    expect(drawer).to_contain_text("none 0 on validation")
    page.keyboard.press("Escape")
    plate.get_by_role("button", name="Cancel").click()
    expect(plate).to_have_attribute("data-state", "not-asked")


def test_a_question_under_way_is_found_again_after_a_reload(page: Page, services: Services) -> None:
    rows = (Path(__file__).parents[2] / "data/prompts/validation.jsonl").read_bytes().splitlines(keepends=True)
    file = {"file": ("a-third.jsonl", b"".join(rows[::3]))}
    httpx.post(f"{services.api}/prompts", files=file, timeout=60).raise_for_status()
    ready(page, f"/routing?a={last_steps(services.api)['kmeans']}&prompts=a-third")
    panel(page, "load_entropy").get_by_role("button", name="Ask").click()
    expect(panel(page, "load_entropy")).to_have_attribute("data-state", "running")
    page.reload()
    # partial: the trained checkpoint has answered, its step 0 is still under way
    expect(panel(page, "load_entropy")).to_have_attribute("data-state", re.compile("running|partial"))
    expect(panel(page, "load_entropy")).to_have_attribute("data-state", "done", timeout=240_000)


def test_what_the_page_of_jobs_lists_has_ended_or_can_be_stopped(page: Page) -> None:
    ready(page, "/jobs")
    expect(page.locator("main .job").first).to_be_visible()
    for state in page.locator("main .job").evaluate_all("jobs => jobs.map(j => j.dataset.jobState)"):
        assert state in ("waiting", "running", "done", "cancelled")
