"""A text typed into the browser runs through both models, and keys alone walk its tokens and layers."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Request, expect

from tests.end_to_end.panels import ready
from tests.end_to_end.test_accessible import violations

pytestmark = pytest.mark.browser

QUERY = "/tokens?a=kmeans/step-06000&b=aux/step-06000&prompts=four-tasks"
MARKUP = "<img src=x onerror=alert(1)> if a < b:"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_text_is_typed_walked_and_continued_with_keys_alone(page: Page, theme: str) -> None:
    ready(page, QUERY)
    if theme == "dark":
        page.keyboard.press("t")
        page.wait_for_function("document.documentElement.dataset.mantineColorScheme === 'dark'")
    first = page.locator("#tokens-a .token")
    expect(first.first).to_be_visible()
    page.locator("#typed").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(MARKUP)
    for side in "ab":
        expect(page.locator(f"#tokens-{side}")).to_contain_text("onerror", use_inner_text=False)
    expect(page.locator("#tokens-page")).to_have_attribute("aria-busy", "false")  # the last key's text, too
    assert page.locator("#tokens-a img").count() == 0  # what is typed is text
    typed = first.count()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Generate
    expect(page.locator("#tokens-b .token.generated")).to_have_count(8)
    assert first.count() == typed + 8
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.locator("#tokens-a")).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#live-region")).to_contain_text("A, layer 1, token 3 of")
    expect(page.locator("#tokens-b .token.here")).to_have_attribute("data-at", "2")
    expect(page.locator("#layer-told")).to_have_attribute("data-layer", "1")
    expect(page.locator("#score canvas")).to_be_visible()
    assert "k.tokens.at=2" in page.url and "layer=1" in page.url
    if theme == "light":  # which looks at both
        assert not violations(page)


def test_a_link_brings_text_and_token_back_and_a_pin_stays(page: Page) -> None:
    ready(page, QUERY + "&layer=2&k.tokens.text=one+two+three&k.tokens.at=1")
    expect(page.locator("#typed")).to_have_value("one two three")
    expect(page.locator("#tokens-a .token.here")).to_have_attribute("data-at", "1")
    page.get_by_role("button", name="Pin").click()
    page.locator("#typed").fill("something else")
    expect(page.locator("#tokens-a")).to_contain_text("else")
    page.get_by_role("button", name="one two three", exact=True).click()
    expect(page.locator("#typed")).to_have_value("one two three")
    page.get_by_role("button", name="Unpin one two three").click()
    expect(page.get_by_role("button", name="one two three", exact=True)).to_have_count(0)


def test_the_experts_told_are_those_of_the_api(page: Page) -> None:
    ready(page, QUERY + "&layer=1&k.tokens.text=one+two+three&k.tokens.at=1")
    expect(page.locator("#tokens-b .token.here")).to_have_attribute("data-at", "1")
    for side, run in (("a", "kmeans"), ("b", "aux")):
        told = page.request.post(
            "/api/v1/sentences", data={"checkpoint": f"{run}/step-06000", "text": "one two three"}
        ).json()
        best = max(zip(told["weights"][1][1], told["indices"][1][1], strict=True))
        row = page.locator(f"#tokens-experts-{side} .token-row").first
        expect(row).to_have_text(f"E{best[1]}{best[0]:.2f}")


def test_whoever_types_fast_waits_for_one_text_at_a_time_and_sees_the_last(page: Page) -> None:
    ready(page, QUERY)
    asked, under_way, most = [], set(), 0

    def sent(request: Request) -> None:
        nonlocal most
        if request.url.endswith("/sentences"):
            asked.append(request)
            under_way.add(request)
            most = max(most, len(under_way))

    page.on("request", sent)
    page.on("requestfinished", lambda request: under_way.discard(request))
    page.on("requestfailed", lambda request: under_way.discard(request))
    page.locator("#typed").fill("one two three four five six seven")
    page.locator("#typed").press("Control+End")
    page.keyboard.type(" eight nine ten eleven")
    expect(page.locator("#tokens-b")).to_contain_text("eleven")
    expect(page.locator("#tokens-page")).to_have_attribute("aria-busy", "false")
    assert most <= 2  # one of each side
    assert asked[-1].post_data_json["text"].endswith(" ten eleven")
    assert len(asked) < 2 * len(" eight nine ten eleven")
