"""Opening any measure's panel by name, as a reader would."""

from __future__ import annotations

import httpx
from playwright.sync_api import Locator, Page, expect

ANSWER_MILLISECONDS = 240_000
SETTLED = "!document.querySelector('.plate[data-state=loading]')"


def ready(page: Page, path: str) -> None:
    """Open a page and wait until no plate is loading."""
    page.goto(path)
    page.wait_for_selector("main h1")
    page.wait_for_function(SETTLED)


def panel(page: Page, measure: str) -> Locator:
    """The first panel of this measure on the page that is open."""
    return page.locator(f'.plate[data-measure="{measure}"]').first


def ask(page: Page, measure: str) -> Locator:
    """Click Ask if the panel waits for it, and wait for its figure."""
    plate = panel(page, measure)
    if plate.get_attribute("data-state") == "not-asked":
        plate.get_by_role("button", name="Ask").click()
    expect(plate).to_have_attribute("data-state", "done", timeout=ANSWER_MILLISECONDS)
    plate.locator(".js-plotly-plot .main-svg").first.wait_for()
    return plate


def open_panel(page: Page, measure: str, query: str = "") -> Locator:
    """Open the page of the measure's family, ask its panel if need be, and return the panel with its figure."""
    origin = page.context.request
    listed = origin.get("/api/v1/measures").json()["measures"]
    told = next(m for m in listed if m["name"] == measure)
    ready(page, f"/{told['family']}{query}")
    return ask(page, measure)


def traces(plate: Locator) -> list[dict]:
    """Type, range and name of every trace that the panel's figure holds, as plotly has them."""
    return plate.locator(".js-plotly-plot").first.evaluate(
        "d => d.data.map(t => ({type: t.type, zmin: t.zmin ?? null, zmax: t.zmax ?? null, name: t.name ?? null}))"
    )


def last_steps(api: str) -> dict[str, str]:
    """Run to the id of its last checkpoint."""
    listed = httpx.get(f"{api}/checkpoints", timeout=30).json()["checkpoints"]
    ordered = sorted((c for c in listed if c["run"]), key=lambda c: c["step"])
    return {c["run"]: c["id"] for c in ordered}
