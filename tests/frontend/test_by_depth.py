"""Several checkpoints by depth in one frame: a line and a band for each, one axis, and the baseline named."""

from dataclasses import replace

import numpy as np
import pytest

from frontend.pages.compare import CURATED
from frontend.places import Place
from frontend.views import Side
from tests.frontend.schema import checked, drawn
from tests.frontend.test_compare_page import FOUR
from tests.frontend.test_pages import filled_at

BY_DEPTH = ("load_violation", "signature_effect")


@pytest.fixture
def four(make_answer, axis, band):
    """Four lines over five layers, half a unit of interval around each; the third has no value in layer 2."""

    def side(role, start):
        values = start + np.arange(5.0)
        if role == "c":
            values[2] = np.nan
        answer = make_answer(values, [axis("layer", 5)], null=band(0.0, 0.4), interval=band(values - 0.5, values + 0.5))
        return Side(role, f"run {role}", answer)

    return [side(role, start) for start, role in enumerate("abcd")]


def names_of(figure):
    return [note["text"] for note in figure["layout"]["annotations"]]


def ribbons(figure):
    return {t["name"]: t for t in figure["data"] if t["name"].startswith("interval of ")}


def test_each_checkpoint_has_a_line_and_a_band_that_is_its_interval(four):
    figure, _ = drawn(four, layer=0)
    bands = ribbons(figure)
    lines = {t["name"]: t for t in figure["data"] if "markers" in t["mode"]}
    assert list(bands) == [f"interval of run {role}" for role in "dcba"] and set(lines) == {f"run {r}" for r in "abcd"}
    np.testing.assert_allclose(bands["interval of run a"]["x"], [0, 1, 2, 3, 4, 4, 3, 2, 1, 0])
    np.testing.assert_allclose(bands["interval of run a"]["y"][:5], np.arange(5) + 0.5)
    np.testing.assert_allclose(bands["interval of run a"]["y"][5:], np.arange(5)[::-1] - 0.5)
    assert not any(t["error_y"]["array"] is not None for t in lines.values())
    assert bands["interval of run b"]["fillcolor"] == lines["run b"]["line"]["color"]


def test_a_layer_without_a_value_is_a_gap_in_the_band_too(four):
    figure, _ = drawn(four, layer=0)
    x = np.asarray(ribbons(figure)["interval of run c"]["x"], float)
    left, right = np.split(x, [int(np.flatnonzero(np.isnan(x))[0])])
    assert set(left) == {0, 1} and set(right[1:]) == {3, 4}


def test_two_hues_and_two_strokes_tell_four_lines_apart_and_the_first_is_named_the_baseline(four):
    figure, _ = drawn(four, layer=0)
    lines = [t for t in figure["data"] if "markers" in t["mode"]]
    assert len({(t["line"]["color"], t["line"]["dash"]) for t in lines}) == 4
    texts = [a["text"] for a in figure["layout"]["annotations"]]
    assert "<b>A</b> run a, baseline" in texts and "<b>D</b> run d" in texts and "chance, A" in texts


def test_where_the_baseline_has_no_chance_that_of_the_first_that_has_one_is_drawn_and_named(four):
    silent = replace(four[0], answer=replace(four[0].answer, null=None, null_reason="no selection to count"))
    told = [names_of(drawn(sides, layer=0)[0]) for sides in (four, [silent, *four[1:]], [silent])]
    assert [[name for name in names if name.startswith("chance")] for names in told] == [
        ["chance, A"],
        ["chance, B"],
        [],
    ]


def test_a_checkpoint_beside_its_own_start_keeps_its_whiskers(four):
    control = Side("control", "step 0", four[1].answer)
    figure, _ = drawn([four[0], control], layer=0)
    assert not ribbons(figure)
    assert not any("baseline" in a["text"] for a in figure["layout"]["annotations"])
    (own,) = (t for t in figure["data"] if t["name"] == "run a")
    np.testing.assert_allclose(own["error_y"]["array"], 0.5)


@pytest.mark.anyio
async def test_load_and_effect_stand_side_by_side_on_one_axis(full):
    places = [place for place in CURATED if place.measure in BY_DEPTH]
    assert [(p.measure, p.sides, p.span) for p in places] == [(name, "pair", 6) for name in BY_DEPTH]
    figures = [(await filled_at(full, place, ("/compare", FOUR))).figure for place in places]
    axes = [checked(figure)["layout"]["xaxis"] for figure in figures]
    assert axes[0]["range"] == axes[1]["range"] and axes[0]["ticktext"] == axes[1]["ticktext"]
    assert all(len(ribbons(figure)) == 4 for figure in figures)


@pytest.mark.anyio
async def test_a_pair_alone_is_drawn_the_same_way(full):
    place = Place("load_violation", sides="pair")
    filled = await filled_at(full, place, ("/compare", FOUR.partition("&c=")[0]))
    assert len(ribbons(filled.figure)) == 2
