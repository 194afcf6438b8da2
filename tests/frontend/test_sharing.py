"""Taking a comparison away: the report of the page, and the files of each panel's menu."""

import threading

import httpx
import numpy as np
import pytest

from frontend import sharing
from frontend.app import create_app
from frontend.menu import FILES, MOST_CELLS, _command, _lines
from frontend.panel import Panel
from frontend.places import Place
from frontend.report import build
from frontend.views import Side
from tests.frontend.fake_backend import create_fake
from tests.frontend.test_compare_page import FOUR
from tests.frontend.test_pages import filled_at, walk, words_of

pytestmark = pytest.mark.anyio
THREE = FOUR.partition("&d=")[0]


async def taken(fake, search):
    """The answer to the page's own query, from an app on this backend."""
    app = create_app("http://fake", httpx.ASGITransport(fake))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pages") as http:
        return await http.get(f"/report{search}")


async def test_a_report_is_one_file_of_every_difference_of_each_against_the_baseline():
    response = await taken(create_fake(everything_stored=True), THREE + "&prompts=four-tasks")
    assert response.status_code == 200
    assert response.headers["content-disposition"] == (
        'attachment; filename="aux-step-02000-free-step-02000-kmeans-step-02000.html"'
    )
    page = response.text.split("<script>")[0]
    for other in ("free", "kmeans"):
        assert f"<h1>aux/step-02000 and {other}/step-02000</h1>" in page
    ends = "aux/step-02000 free/step-02000 kmeans/step-02000"
    assert page.count(f"moe-geometry compare {ends} --prompts four-tasks") == 1
    assert page.count("<h2>Load difference</h2>") == 2 and "0 → 1, 1 → 2" in page and "7 → none" in page
    assert page.count('<div id="figure-') == 4 and "https://" not in page


async def test_taking_a_report_asks_nothing_and_names_what_is_missing():
    fake = create_fake()
    response = await taken(fake, THREE)
    assert response.text.count("Not compared: it is not asked yet; its panel on the page “compare” asks it") == 4
    assert not fake.state.desk.jobs and all(asked["only_stored"] for asked in fake.state.desk.asked)


async def test_all_pairs_of_experts_are_drawn_and_called_nobodys_match(make_answer, axis):
    def told(values):
        answer = make_answer(values, [axis("layer", 1), axis("expert", 2), axis("expert_b", 2)])
        pair = {"a": "one", "b": "other", "matching": {"title": "Matching", "answer": answer}, "differences": []}
        return build({"prompts": "some", "command": "moe-geometry compare", "pairs": [pair]}).split("<script>")[0]

    assert "Which expert is which" not in told([[[0.9, 0.1], [0.2, 0.8]]])
    assert "0 → 1, 1 → none" in told([[[np.nan, 0.9], [np.nan, np.nan]]])


async def test_who_cannot_be_compared_says_why_in_the_report():
    dense = THREE.replace("c=kmeans", "c=dense")
    page = (await taken(create_fake(everything_stored=True), dense)).text.split("<script>")[0]
    assert "Not compared: dense/step-02000 is dense" in page or "is dense: it has no experts" in page
    assert page.count('<div id="figure-') == 2


async def test_a_report_of_an_unknown_checkpoint_is_a_sentence():
    response = await taken(create_fake(), "?a=nobody&b=aux/step-02000")
    assert response.status_code == 404 and "“nobody” is not loaded" in response.text


async def test_the_file_is_made_beside_the_loop_that_serves_everyone(monkeypatch):
    seen = []
    monkeypatch.setattr(sharing, "build", lambda told: seen.append(threading.current_thread()) or "")
    await taken(create_fake(everything_stored=True), THREE)
    assert seen and seen[0] is not threading.main_thread()


def links(panel):
    return [c for c in walk(_lines(panel, ())) if c.__class__.__name__ == "A"]


async def test_each_of_those_compared_has_files_of_its_own(full):
    for place in (Place("expert_load", sides="pair"), Place("load_difference", sides="both")):
        panel = (await filled_at(full, place, ("/compare", FOUR))).panel
        told = links(panel)
        assert len(told) == len(panel.sides) * len(FILES)
        assert len({link.href for link in told}) == len(told)
        assert {words_of(link) for link in told} == {"CSV", "Parquet", "npy", "LaTeX"}
        (table,) = (c for c in walk(_lines(panel, ())) if getattr(c, "data-act", "") == "table")
        assert getattr(table, "data-answer").split() == [s.answer.key for s in panel.sides]
        assert len(_command(panel).splitlines()) == len(panel.sides)


async def test_a_checkpoint_beside_its_start_gives_its_own_files_alone(full):
    panel = (await filled_at(full, Place("expert_load"), ("/routing", "?a=aux/step-02000"))).panel
    assert len(panel.sides) == 2 and len(links(panel)) == len(FILES)
    assert all("step-02000" in link.href for link in links(panel))


def test_latex_is_offered_where_a_table_can_be_read(make_answer, axis):
    def offered(size):
        answer = make_answer(np.zeros(size), [axis("prompt", size)])
        panel = Panel(Place("any", sides="both"), {"name": "any"}, "done", sides=(Side("ab", "both", answer),))
        return {words_of(link) for link in links(panel)}

    assert "LaTeX" in offered(MOST_CELLS) and "LaTeX" not in offered(MOST_CELLS + 1)
