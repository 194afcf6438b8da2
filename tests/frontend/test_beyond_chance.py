"""Beyond chance only: what a corrected p does not put beyond chance is dimmed and counted, and nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.result import Null, Reason
from backend import wire
from frontend.answer import Band, decode_arrow, decode_json
from frontend.beyond import LEVEL, filtered
from frontend.filling import depends
from frontend.order import in_order
from frontend.pages.compared import strip
from frontend.panel import plate
from frontend.places import Place
from frontend.state import parse
from frontend.views import Side
from frontend.views.aligned import aligned
from tests.frontend.schema import drawn
from tests.frontend.test_compare_page import FOUR
from tests.frontend.test_pages import MATERIAL, filled_at, walk, words_of


@pytest.fixture
def tested(make_answer, axis):
    """Values whose null holds these p's."""

    def make(shape, p, role="ab"):
        values = np.linspace(1, 2, int(np.prod(shape))).reshape(shape)
        null = Band(np.float64(-1), np.float64(1), "planted", np.float64(0), p=None if p is None else np.asarray(p))
        names = ("layer", "expert", "expert_b")
        axes = [axis(name, n) for name, n in zip(names, shape, strict=False)]
        return Side(role, "one and other", make_answer(values, axes, null=null))

    return make


def veils(figure):
    return [t for t in figure["data"] if t["name"] == "dimmed"]


def test_points_of_a_line_fade_where_chance_explains_them_and_keep_their_values(tested):
    plain = tested((4,), [0.001, 0.2, 0.05, 0.051])
    (side,), told = filtered([plain])
    assert told == "2 of 4 layers differ from chance. Dimmed: p above 0.05, corrected for all of them."
    (line,) = drawn([side], layer=0)[0]["data"][-1:]
    np.testing.assert_array_equal(np.asarray(line["marker"]["opacity"]) < 1, [False, True, False, True])
    np.testing.assert_allclose(line["y"], plain.answer.values)
    assert drawn([plain], layer=0)[0]["data"][-1]["marker"]["opacity"] is None


def test_a_p_by_layer_dims_the_whole_row_and_a_p_by_cell_its_cell(tested):
    (rows,), told = filtered([tested((3, 4), [[0.01], [0.9], [0.02]])])
    (veil,) = veils(drawn([rows], layer=0)[0])
    np.testing.assert_array_equal(np.isfinite(np.asarray(veil["z"], float)).any(1), [False, True, False])
    assert told.startswith("2 of 3 layers differ")
    cells = np.full((3, 4), 0.5)
    cells[2, 1] = LEVEL
    (one,), told = filtered([tested((3, 4), cells)])
    (veil,) = veils(drawn([one], layer=0)[0])
    assert np.isnan(np.asarray(veil["z"], float)[2, 1]) and np.isfinite(np.asarray(veil["z"], float)).sum() == 11
    assert told.startswith("1 of 12 cells differ")


def test_tiles_are_dimmed_too(tested):
    (side,), _ = filtered([tested((2, 3, 3), [[[0.9]], [[0.01]]])])
    (veil,) = veils(drawn([side], layer=0)[0])
    assert np.isfinite(np.asarray(veil["z"], float)).sum() == 9


def test_a_case_without_a_number_is_not_counted(tested):
    assert filtered([tested((3,), [0.01, np.nan, 0.5])])[1].startswith("1 of 2 layers")


def test_without_a_p_nothing_is_dimmed_and_the_plate_says_so(tested):
    (side,), told = filtered([tested((3, 4), None)])
    assert told == "No p by layer or cell comes with this measure, so nothing is dimmed."
    assert side.faded is None and not veils(drawn([side], layer=0)[0])


def test_what_stands_side_by_side_says_which_panel_has_its_p(tested):
    told = filtered([tested((3, 4), None)], "Load difference")[1]
    assert told.endswith("nothing is dimmed. The p is in “Load difference”.")


def test_an_answer_that_says_why_it_has_no_p_is_taken_at_its_word(tested):
    plain = tested((3, 4), None)
    mixed = replace(plain, answer=replace(plain.answer, facts={"permutation p": "none: kinds share hidden states"}))
    unequal = replace(plain, answer=replace(plain.answer, null=None, null_reason="a has 6 experts, b 7"))
    assert filtered([mixed])[1] == "No p: kinds share hidden states."
    assert filtered([unequal])[1] == "No p: a has 6 experts, b 7, so nothing is dimmed."


def test_several_are_each_counted_under_their_letter(tested):
    with_p, without = tested((4,), [0.01, 0.9, 0.9, 0.9], "b"), tested((4,), None, "c")
    told = filtered([with_p, without])[1]
    assert "B: 1 of 4 layers differ" in told and "C: no p by layer" in told


def test_a_p_moves_with_its_layer_and_its_expert(tested):
    short = tested((2,), [0.01, 0.9], "b")
    other = replace(short, answer=replace(short.answer, axes=(replace(short.answer.axes[0], labels=("1", "2")),)))
    one, moved = aligned([replace(short, role="a"), other])
    np.testing.assert_array_equal(moved.answer.null.p, [np.nan, 0.01, 0.9])
    np.testing.assert_array_equal(one.answer.null.p, [0.01, 0.9, np.nan])
    side = tested((1, 2), [[0.01, 0.9]], "b")
    swapped = tested((1, 2, 2), None).answer
    swapped = replace(swapped, values=np.array([[[np.nan, 1.0], [1.0, np.nan]]]))
    np.testing.assert_array_equal(in_order(side, swapped).answer.null.p, [[0.9, 0.01]])


@pytest.mark.parametrize("p", [[[0.01], [0.4]], [[0.01, 0.5, 1.0], [0.2, 0.3, 0.4]]])
def test_both_ways_of_an_answer_bring_a_p_that_still_says_of_what_it_is(p):
    null = Null(np.array(0.0), np.array(-1.0), np.array(1.0), "planted", np.array(p))
    axes = (wire.Axis("layer", ("0", "1")), wire.Axis("expert", ("E0", "E1", "E2")))
    result = wire.Result("any", np.zeros((2, 3)), axes, "", null, Reason("none"))
    for back in (decode_arrow(wire.to_arrow(result, {})), decode_json(wire.to_json(result, {}))):
        np.testing.assert_array_equal(back.null.p, p)


@pytest.mark.anyio
async def test_the_switch_stands_in_the_address_and_every_plate_follows_it(full):
    place, plain, on = Place("expert_load", sides="pair"), ("/compare", FOUR), ("/compare", FOUR + "&beyond=only")
    assert depends(place, parse(*plain, MATERIAL), MATERIAL) != depends(place, parse(*on, MATERIAL), MATERIAL)
    assert "nothing is dimmed" in words_of(plate((await filled_at(full, place, on)).panel))
    assert "nothing is dimmed" not in words_of(plate((await filled_at(full, place, plain)).panel))
    named = replace(place, difference="load_difference")
    assert "The p is in “Load difference”" in words_of(plate((await filled_at(full, named, on)).panel))
    pressed = {
        told["data-value"]: told["aria-pressed"]
        for c in walk(strip(parse(*on, MATERIAL), MATERIAL))
        if (told := c.to_plotly_json()["props"]).get("data-parameter") == "beyond"
    }
    assert pressed == {"all": "false", "only": "true"}
