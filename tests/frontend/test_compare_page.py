"""The compare page's places: two to four checkpoints in one figure, experts in their own order or under their match."""

from dataclasses import replace

import httpx
import numpy as np
import pytest

from frontend.client import Client, NotAsked, Question
from frontend.filling import compose
from frontend.pages import differs
from frontend.pages.compared import strip
from frontend.panel import plate
from frontend.places import Place, questions
from frontend.state import parse
from tests.frontend.fake_backend import create_fake
from tests.frontend.schema import checked
from tests.frontend.test_pages import MATERIAL, filled_at, walk, words_of

pytestmark = pytest.mark.anyio


async def test_compare_asks_both_sides_and_draws_them_in_one_figure(full):
    filled = await filled_at(
        full, Place("expert_load", sides="pair"), ("/compare", "?a=aux/step-02000&b=none/step-02000")
    )
    assert [s.role for s in filled.panel.sides] == ["a", "b"]
    assert len({(t.zmin, t.zmax) for t in checked(filled.figure).data}) == 1


async def test_side_by_side_in_matched_order_each_expert_of_b_stands_under_its_match_and_the_figure_says_so(full):
    place, both = Place("expert_load", sides="pair", matching="expert_matching"), "?a=aux/step-02000&b=none/step-02000"
    plain = await filled_at(full, place, ("/compare", both))
    matched = await filled_at(full, place, ("/compare", both + "&order=matched"))
    (a, b), (own, moved) = plain.panel.sides, matched.panel.sides
    assert np.array_equal(own.answer.values, a.answer.values)
    assert np.array_equal(moved.answer.values[:, :-1], b.answer.values[:, 1:])
    assert np.isnan(moved.answer.values[:, -1]).all()
    assert np.array_equal(moved.answer.interval.low[:, :-1], b.answer.interval.low[:, 1:])
    assert "matched to a" in moved.label and b.label.endswith(", its own numbers")
    assert "its own numbers" not in a.label + own.label
    assert moved.answer.axes[1].labels[0] == "match of 0"
    assert [s.role for s in matched.panel.sides] == ["a", "b"]


async def test_a_figure_without_experts_has_no_order(full):
    place, both = (
        Place("load_violation", sides="pair", matching="expert_matching"),
        "?a=aux/step-02000&b=none/step-02000",
    )
    assert len(questions(place, parse("/compare", both + "&order=matched", MATERIAL), MATERIAL)) == 2


async def test_beside_a_fully_soft_router_signatures_of_all_are_of_combine_weights_and_say_so():
    knob = {"name": "weighting", "kind": "choice", "default": "auto", "choices": ["auto", "count", "weight"]}
    measures = tuple(
        m | {"knobs": [*m["knobs"], knob]} if m["name"] == "signature_similarity" else m for m in MATERIAL.measures
    )
    material, place = replace(MATERIAL, measures=measures), Place("signature_similarity", sides="pair")

    def asked(query):
        return questions(place, parse("/compare", query, material), material)

    soft, aux = asked("?a=soft/step-02000&b=aux/step-02000")
    assert soft.question.knobs["weighting"] == aux.question.knobs["weighting"] == "weight"
    assert all(each.label.endswith(", by combine weight") for each in (soft, aux))
    for query in ("?a=free/step-02000&b=aux/step-02000", "?a=soft/step-02000&b=soft/step-00000"):
        assert not any("weighting" in each.question.knobs or "combine" in each.label for each in asked(query))
    chosen = asked("?a=soft/step-02000&b=aux/step-02000&k.signature_similarity.weighting=count")
    assert {each.question.knobs["weighting"] for each in chosen} == {"count"}


async def test_a_two_sided_measure_is_asked_of_both_at_once(full):
    asked = questions(
        Place("load_difference", sides="both"),
        parse("/compare", "?a=aux/step-02000&b=free/step-02000", MATERIAL),
        MATERIAL,
    )
    assert asked[0].question.checkpoints == ("aux/step-02000", "free/step-02000")


FOUR = "?a=aux/step-02000&b=free/step-02000&c=kmeans/step-02000&d=none/step-02000"


async def test_up_to_four_stand_on_one_scale_the_first_of_them_first(full):
    filled = await filled_at(full, Place("expert_load", sides="pair"), ("/compare", FOUR))
    drawn = checked(filled.figure).data
    assert [s.role for s in filled.panel.sides] == ["a", "b", "c", "d"]
    assert len(drawn) == 4 and len({(t.zmin, t.zmax) for t in drawn}) == 1
    assert [s.answer.provenance["checkpoints"][0]["id"] for s in filled.panel.sides] == [
        f"{run}/step-02000" for run in ("aux", "free", "kmeans", "none")
    ]


async def test_differences_of_several_are_each_taken_against_the_first_and_share_their_range(full):
    filled = await filled_at(full, Place("load_difference", sides="both"), ("/compare", FOUR))
    asked = [a.question.checkpoints for a in filled.panel.asked]
    assert asked == [("aux/step-02000", f"{run}/step-02000") for run in ("free", "kmeans", "none")]
    drawn = checked(filled.figure).data
    assert len(drawn) == 3 and {t.zmin for t in drawn} == {-drawn[0].zmax}
    assert filled.panel.scale.title == "other − A" and "against A" in filled.panel.sides[1].label


def test_c_and_d_wait_in_the_address_of_every_page_and_stand_on_one():
    here, elsewhere = parse("/compare", FOUR, MATERIAL), parse("/routing", FOUR, MATERIAL)
    assert [letter for letter, _ in here.compared] == ["a", "b", "c", "d"]
    assert [letter for letter, _ in elsewhere.compared] == ["a", "b"]
    assert parse("/compare", elsewhere.url("/compare").partition("?")[2], MATERIAL).compared == here.compared
    assert [letter for letter, _ in parse("/compare", "?c=&d=none/step-02000", MATERIAL).compared] == ["a", "b", "d"]


async def test_who_cannot_be_compared_says_why_beside_the_figure_of_the_others(full):
    mixed = "?a=aux/step-02000&b=free/step-02000&c=dense/step-02000"
    pair = await filled_at(full, Place("expert_load", sides="pair"), ("/compare", mixed))
    assert pair.panel.state == "done" and [s.role for s in pair.panel.sides] == ["a", "b"]
    said = "C dense 2,000 is not drawn: dense/step-02000 is dense: it has no experts to ask about."
    assert pair.panel.message == said and said in words_of(plate(pair.panel))
    both = await filled_at(full, Place("load_difference", sides="both"), ("/compare", mixed.replace("c=", "d=")))
    # the fake names the first dense one; what matters is that B is drawn and D is not
    assert [s.role for s in both.panel.sides] == ["b"] and both.panel.message.startswith("D dense 2,000 against A is")


async def test_a_difference_of_two_that_cannot_be_taken_is_refused_as_a_whole(full):
    alone = ("/compare", "?a=aux/step-02000&b=dense/step-02000")
    filled = await filled_at(full, Place("load_difference", sides="both"), alone)
    assert filled.panel.state == "refused" and "dense" in filled.panel.message


async def test_a_refusal_that_came_in_a_job_is_told_like_any_other(full):
    place, state = Place("load_difference", sides="both"), parse("/compare", FOUR, MATERIAL)
    asked = questions(place, state, MATERIAL)
    answers = [await full.stored(each.question) for each in asked]
    gone = NotAsked({"passes": 1}, "b has 3 layers")
    filled = compose(place, state, MATERIAL, list(zip(asked, [gone, *answers[1:]], strict=True)))
    assert filled.panel.state == "done" and [s.role for s in filled.panel.sides] == ["c", "d"]
    assert "B free 2,000 against A is not drawn: b has 3 layers." in words_of(plate(filled.panel))
    none_left = compose(place, state, MATERIAL, [(asked[0], gone)])
    assert none_left.panel.state == "failed" and none_left.panel.message == "b has 3 layers"


async def test_what_a_job_refused_is_known_when_the_page_is_opened_again():
    fake, ends = create_fake(), ("aux/step-02000", "free/step-02000")
    job = {"id": "j0", "key": "k", "measure": "load_difference", "checkpoints": list(ends), "prompts": "four-tasks"}
    fake.state.desk.jobs["j0"] = job | {"state": "failed", "refused": True, "message": "b has 3 layers"}
    client = Client("http://fake", httpx.ASGITransport(fake))
    question = Question("load_difference", ends, "four-tasks")
    found = await client.stored(question)
    assert isinstance(found, NotAsked) and found.refused == "b has 3 layers" and found.cost["tokens"] == 4096
    fake.state.desk.jobs["j0"] |= {"refused": False, "message": "The worker was killed."}
    assert (await client.stored(question)).refused == ""
    await client.close()


async def test_matched_to_a_each_of_the_others_is_moved_by_a_matching_of_its_own(full):
    place = Place("expert_load", sides="pair", matching="expert_matching")
    matched = await filled_at(full, place, ("/compare", FOUR + "&order=matched"))
    moved = [s.answer.axes[1].labels[0] for s in matched.panel.sides]
    assert moved == ["0", "match of 0", "match of 0", "match of 0"]


async def test_the_strip_names_the_baseline_pins_another_and_has_room_for_one_more():
    three = parse("/compare", FOUR.partition("&d=")[0], MATERIAL)
    parts = walk(strip(three, MATERIAL))
    acts = [c.to_plotly_json()["props"] for c in parts if hasattr(c, "data-act")]
    assert [(a["data-act"], a["data-letter"]) for a in acts] == [("baseline", "b"), ("baseline", "c"), ("drop", "c")]
    assert acts[0]["data-first"] == "aux/step-02000" and acts[0]["data-own"] == "free/step-02000"
    assert [getattr(c, "data-free") for c in parts if hasattr(c, "data-free")] == ["d"]
    assert not [c for c in walk(strip(parse("/compare", FOUR, MATERIAL), MATERIAL)) if hasattr(c, "data-free")]


async def test_what_differs_has_a_column_for_each_and_folds_what_all_share():
    told = words_of(differs.table(parse("/compare", FOUR, MATERIAL), MATERIAL))
    assert all(word in told for word in ("loss-free bias", "K-Means", "unbalanced", "2 of 9 facts differ"))
