"""The report of a comparison: one file that opens without a network, draws its figures and holds nobody's markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from frontend.report import build
from tests.frontend import planted

pytestmark = pytest.mark.browser

ENDS = ["aux/step-03000", "free/step-03000"]
MARKUP = "</script><img src=x onerror=alert(1)>"


def answered(measure: str) -> dict:
    told = next(m for m in planted.MEASURES if m["name"] == measure)
    question = {"measure": measure, "checkpoints": ENDS, "knobs": {}, "prompts": "four-tasks"}
    described = {name: told[name] for name in ("title", "question", "source", "caveat")}
    return described | planted.answer(question)


def compared() -> dict:
    matching = answered("expert_matching")
    refused = {"measure": "subspace_drift", "title": "Subspace drift", "refused": f"it cannot be: {MARKUP}"}
    differences = [answered("load_difference"), refused]
    pair = {"a": ENDS[0], "b": MARKUP, "matching": matching, "differences": differences}
    return {"prompts": "four-tasks", "command": "moe-geometry compare", "pairs": [pair]}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_opens_offline_and_draws_everything(browser: Browser, tmp_path: Path, scheme) -> None:
    file = tmp_path / "report.html"
    file.write_text(build(compared()), "utf-8")
    context = browser.new_context(offline=True, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url))
    page.goto(file.as_uri())
    expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.locator("section")).to_have_count(4)
    expect(page.locator("h1")).to_contain_text("onerror")
    assert page.locator("img").count() == 0  # names and sentences are text
    expect(page.locator("main")).to_contain_text("6 → 7, 7 → none")
    expect(page.locator("main")).to_contain_text("Not compared: it cannot be")
    expect(page.locator("main")).to_contain_text("4,096 tokens")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(15, 17, 21)") == (scheme == "dark")
    context.close()
    assert not wrong, wrong
