"""The compare page's places: two checkpoints in one figure, B's experts in their own order or under their match."""

import numpy as np
import pytest

from frontend.places import Place, questions
from frontend.state import parse
from tests.frontend.schema import checked
from tests.frontend.test_pages import MATERIAL, filled_at

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
    assert "matched to a" in moved.label and "matched" not in b.label
    assert moved.answer.axes[1].labels[0] == "match of 0"
    assert [s.role for s in matched.panel.sides] == ["a", "b"]


async def test_a_figure_without_experts_has_no_order(full):
    place, both = (
        Place("load_violation", sides="pair", matching="expert_matching"),
        "?a=aux/step-02000&b=none/step-02000",
    )
    assert len(questions(place, parse("/compare", both + "&order=matched", MATERIAL), MATERIAL)) == 2


async def test_a_two_sided_measure_is_asked_of_both_at_once(full):
    asked = questions(
        Place("load_difference", sides="both"),
        parse("/compare", "?a=aux/step-02000&b=free/step-02000", MATERIAL),
        MATERIAL,
    )
    assert asked[0].question.checkpoints == ("aux/step-02000", "free/step-02000")
