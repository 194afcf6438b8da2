"""An edit is tried in the browser: perplexity beside random edits, routing by layer, changed tokens as text."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.end_to_end.panels import ready
from tests.end_to_end.test_accessible import violations

pytestmark = pytest.mark.browser

QUERY = "/whatif?a=aux-s1/step-06000&b=free-s1/step-06000&prompts=few"


def test_an_expert_is_switched_off_and_the_page_says_what_that_costs(page: Page) -> None:
    ready(page, QUERY + "&k.whatif.kind=off&k.whatif.layer=2&k.whatif.expert=5")
    expect(page.locator("#whatif-second")).to_be_hidden()
    expect(page.get_by_text("Nothing of this is kept")).to_be_visible()
    page.get_by_role("button", name="Try it").click()
    plate = page.get_by_role("region", name="Perplexity")
    expect(plate).to_contain_text("Expert 5 of layer 2 off")
    assert plate.locator("tbody tr").count() == 5  # all and four categories
    told = page.request.post(
        "/api/v1/edits",
        data={
            "checkpoint": "aux-s1/step-06000",
            "prompts": "few",
            "edit": {"kind": "off", "layer": "2", "expert": 5},
        },
    ).json()
    expect(plate.locator("tbody tr").first).to_contain_text(f"{told['perplexity'][0]['after']:,.2f}")
    tokens = page.get_by_role("region", name="Tokens that changed")
    assert tokens.locator("tbody tr").count() == len(told["tokens_changed"]["shown"])
    assert not violations(page)


def test_a_plan_hands_over_a_keep_list_as_json(page: Page) -> None:
    ready(page, QUERY)
    page.get_by_role("button", name="Plan it").click()
    plate = page.get_by_role("region", name="What each criterion's keep-list costs")
    expect(plate.locator("tbody tr")).to_have_count(12)  # untouched, ten criteria, random
    with page.expect_download() as came:
        plate.get_by_role("link", name="Keep-list of reap as JSON").click()
    written = json.loads(came.value.path().read_text())
    assert [len(layer["keep"]) for layer in written["layers"].values()] == [6, 6, 6]
    assert not violations(page)


def test_a_link_fills_the_form_and_a_wrong_field_is_a_sentence(page: Page) -> None:
    ready(page, QUERY + "&k.whatif.kind=merge&k.whatif.layer=1&k.whatif.expert=3&k.whatif.second=6")
    for field, value in (("layer", "1"), ("expert", "3"), ("second", "6")):
        expect(page.locator(f"#whatif-{field}")).to_have_value(value)
    page.locator("#whatif-second").fill("<b>six</b>")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("alert")).to_contain_text("must be a whole number; it is '<b>six</b>'")
    page.locator("#whatif-second").fill("6")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("region", name="Perplexity")).to_contain_text("would save")
