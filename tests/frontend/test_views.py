import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from frontend import theme
from frontend.answer import Axis
from frontend.figure import sent
from frontend.scales import scale_of
from frontend.views import Side, draw, draw_runs, kind_of, table
from frontend.views.marks import positions, spread
from frontend.views.matrix import arranged
from frontend.views.mosaic import tiles
from tests.frontend.schema import checked, drawn

CASES = {
    "number": (),
    "line": ("layer",),
    "heatmap": ("layer", "expert"),
    "mosaic": ("layer", "expert", "expert_b"),
    "slab": ("layer", "expert", "category"),
    "course": ("step", "layer"),
    "matrix": ("prompt", "prompt_b"),
    "scatter": ("prompt", "coordinate"),
}
SIZES = {
    "layer": 4,
    "expert": 8,
    "expert_b": 8,
    "prompt": 12,
    "prompt_b": 12,
    "coordinate": 2,
    "category": 4,
    "step": 7,
}
GROUPS = tuple("code mathematics story fact".split()[i // 3] for i in range(12))


@pytest.fixture
def planted(make_answer, axis, band):
    def make(kind, seed=0, **more):
        names = CASES[kind]
        values = np.random.default_rng(seed).normal(size=tuple(SIZES[n] for n in names))
        axes = [axis(n, SIZES[n], GROUPS if n.startswith("prompt") else None) for n in names]
        return make_answer(
            values, axes, **({"null": band(-0.1, 0.1), "interval": band(values - 0.2, values + 0.2)} | more)
        )

    return make


@pytest.mark.parametrize("kind", CASES)
def test_the_axes_of_an_answer_choose_its_view(planted, kind):
    assert kind_of(planted(kind)) == kind


@pytest.mark.parametrize("kind", CASES)
def test_every_view_draws_an_answer_beside_its_control_as_finite_json(planted, kind):
    figure, _ = drawn([Side("a", "free 24k", planted(kind)), Side("control", "step 0", planted(kind, 1))], layer=2)
    assert figure.layout.uirevision == "keep" and figure.layout.meta["height"] > 0
    json.dumps(figure.to_dict(), allow_nan=False, default=str)


def test_what_is_sent_is_what_was_drawn_and_no_property_is_unknown_to_plotly(planted):
    figure, _ = draw([Side("a", "free", planted("heatmap"))])
    (trace,) = sent(figure)["data"]
    cells = np.frombuffer(base64.b64decode(trace["z"]["bdata"]), {"f4": np.float32}[trace["z"]["dtype"]])
    assert trace["z"]["shape"] == "4, 8"
    np.testing.assert_array_equal(cells.reshape(4, 8), figure["data"][0]["z"])
    figure["data"][0]["zmim"] = 0.0
    with pytest.raises(ValueError, match="zmim"):
        checked(figure)


@pytest.mark.parametrize("kind", CASES)
def test_every_colour_of_a_figure_has_its_dark_counterpart(planted, kind):
    figure, _ = drawn([Side("a", "free", planted(kind)), Side("b", "aux", planted(kind, 1))])
    pairs = theme.pairs()

    def walk(node):
        if isinstance(node, dict):
            return [h for v in node.values() for h in walk(v)]
        if isinstance(node, list | tuple):
            return [h for v in node for h in walk(v)]
        return [node] if isinstance(node, str) and len(node) == 7 and node.startswith("#") else []

    used = walk(figure.to_dict())
    assert used and all(h.lower() in pairs for h in used)


def test_a_mosaic_is_one_trace_with_one_scale_whatever_the_layers_and_sides(planted):
    figure, scale = drawn([Side("a", "A", planted("mosaic")), Side("b", "B", planted("mosaic", 1))])
    assert len(figure.data) == 1 and figure.data[0].type == "heatmap"
    assert (figure.data[0].zmin, figure.data[0].zmax) == (scale.low, scale.high)


def test_tiles_keep_every_value_and_part_them_with_blank_gutters():
    block = np.arange(3 * 2 * 2, dtype=float).reshape(3, 2, 2)
    laid, corners = tiles([block], columns=2, gap=(1, 1))
    assert laid.shape == (5, 5)
    for i, (r, c) in enumerate(corners[0]):
        assert np.array_equal(laid[r : r + 2, c : c + 2], block[i])
    assert np.isnan(laid).sum() == 25 - 12


def test_a_shared_expert_is_the_last_row_and_column_of_each_tile_and_named_there(make_answer, axis):
    labels = (*(f"E{e}" for e in range(8)), "shared")
    axes = [axis("layer", 3), Axis("expert", labels), Axis("expert_b", labels)]
    values = np.arange(3 * 9 * 9, dtype=float).reshape(3, 9, 9) / 243
    figure, _ = drawn(
        [Side("a", "A", make_answer(values, axes)), Side("control", "step 0", make_answer(-values, axes))]
    )
    (trace,) = figure.data
    _, corners = tiles([values, values], 3, (2, 2))
    for side, sign in zip(corners, (1, -1), strict=True):
        for layer, (row, column) in enumerate(side):
            for j, k in ((8, 0), (0, 8), (8, 8)):
                told = f"layer {layer}, {labels[j]} × {labels[k]}"
                assert trace.customdata[row + j][column + k].endswith(told)
                assert float(trace.z[row + j][column + k]) == pytest.approx(sign * values[layer, j, k], abs=1e-6)


def test_a_and_b_share_one_range_and_a_difference_is_symmetric(planted):
    a, b = planted("heatmap"), planted("heatmap", 1)
    figure, scale = drawn([Side("a", "A", a), Side("b", "B", b)])
    assert {(t.zmin, t.zmax) for t in figure.data} == {(scale.low, scale.high)}
    difference = scale_of([a], difference=True)
    assert difference.low == pytest.approx(-difference.high)
    neutral = [at for at, token in difference.stops if token == "dif-3"]
    assert neutral[0] < 0.5 < neutral[1]


def test_undefined_cells_stay_blank_and_are_never_zero(planted):
    answer = planted("heatmap")
    answer.values[1, 2] = np.nan
    figure, scale = drawn([Side("a", "A", answer)])
    assert np.isnan(scale.drawn(answer.values)[1, 2])
    assert figure.data[0].hoverongaps is False
    assert figure.data[0].text[1][2] == ""


def test_the_null_is_drawn_and_named_in_a_line(planted):
    figure, _ = drawn([Side("a", "A", planted("line"))])
    assert [s.fillcolor for s in figure.layout.shapes if s.fillcolor] == [theme.LIGHT["null-fill"]]
    assert "chance" in [a.text for a in figure.layout.annotations]


def test_a_null_that_differs_by_layer_is_a_ribbon(planted, band):
    figure, _ = drawn([Side("a", "A", planted("line", null=band(np.zeros(4), np.arange(1.0, 5.0))))])
    assert "null" in [t.name for t in figure.data]


def test_step_0_is_dashed_and_without_bars(planted):
    figure, _ = drawn([Side("a", "A", planted("line")), Side("control", "step 0", planted("line", 1))])
    control = next(t for t in figure.data if t.name == "step 0")
    assert control.line.dash != "solid" and control.error_y.array is None


def test_loads_over_uniform_are_coloured_as_log_ratios(make_answer, axis, band):
    answer = make_answer(
        [[0.25, 1.0], [4.0, 0.0]],
        [axis("layer", 2), axis("expert", 2)],
        unit="load over uniform (0 to E/k)",
        null=band(0.9, 1.1),
    )
    scale = scale_of([answer])
    drawn = scale.drawn(answer.values)
    assert scale.log and drawn[0, 1] == 0 and drawn[1, 0] == -drawn[0, 0] and drawn[1, 1] == scale.low


def test_a_thing_against_itself_does_not_stretch_the_scale(make_answer, axis):
    values = np.full((1, 4, 4), 0.2) + 0.8 * np.eye(4)
    values[0, 0, 1] = 0.3
    assert scale_of(
        [make_answer(values, [axis("layer", 1), axis("expert", 4), axis("expert_b", 4)])]
    ).high == pytest.approx(0.3)


def test_prompts_are_sorted_into_their_categories_with_gutters(make_answer, axis):
    groups = ("story", "code", "story", "code")
    order, at, names = arranged(make_answer(np.eye(4), [axis("prompt", 4, groups), axis("prompt_b", 4, groups)]))
    assert [groups[i] for i in order] == ["story", "story", "code", "code"]
    assert at[2] - at[1] == 2 and [n for n, _ in names] == ["story", "code"]


def test_categories_differ_in_shape_as_well_as_hue(planted):
    figure, _ = drawn([Side("a", "A", planted("scatter"))])
    assert len({t.marker.symbol for t in figure.data}) == 4 == len({t.marker.color for t in figure.data})


def test_the_runs_figure_shows_floor_step_0_and_the_mean(planted):
    sides = [
        Side("a", "free 24k", planted("line")),
        Side("control", "free 24k", planted("line", 1)),
        Side("context", "none 24k", planted("line", 2)),
    ]
    known = sides[0].answer
    sides[0] = replace(sides[0], answer=replace(known, interval=replace(known.interval, over_layers=(0.25, 0.75))))
    figure = checked(draw_runs(sides))
    assert len(figure.data) == 3
    told = [a.text for a in figure.layout.annotations]
    assert any("floor" in text for text in told) and "mean over layers" in told
    assert [text.partition("<br>")[2] for text in told if "<br>" in text] == ["0.250 to 0.750"]


def test_the_table_twin_has_a_row_per_value_and_none_for_undefined(planted):
    answer = planted("heatmap")
    answer.values[0, 0] = np.nan
    rows = table.rows(answer)
    assert len(rows) == 32 and rows[0]["value"] is None
    assert rows[9]["layer"] == "1" and rows[9]["expert"] == "1" and rows[9]["value"] == answer.values[1, 1]
    assert len(table.rows(answer, most=5)) == 5


def test_an_answer_without_any_finite_value_is_drawn_as_such(planted):
    for kind in CASES:
        answer = planted(kind)
        answer.values[...] = np.nan
        drawn([Side("a", "A", answer)])


def test_labels_at_line_ends_are_pushed_apart_in_order():
    out = spread([1.0, 1.01, 5.0], gap=0.5)
    assert out[1] - out[0] == pytest.approx(0.5) and out[2] == 5.0


def test_axis_labels_with_numbers_keep_their_places():
    assert positions(("3", "4", "7")).tolist() == [3, 4, 7]
    assert positions(("layer 1", "layer 2")).tolist() == [1, 2]
    assert positions(("code", "story")) is None


def test_cosines_around_zero_are_signed_and_similarities_above_chance_are_magnitudes(make_answer, axis, band):
    axes = [axis("layer", 3), axis("expert", 3)]
    cosines = make_answer(np.linspace(-0.4, 0.3, 9).reshape(3, 3), axes, null=band(-0.2, 0.2))
    assert {token[:3] for _, token in scale_of([cosines]).stops} == {"sig"}
    rarely = make_answer(np.r_[np.linspace(0.1, 0.9, 98), 0.97, 0.98].reshape(10, 10), axes[:0], null=band(0.9, 0.95))
    assert {token[:3] for _, token in scale_of([rarely]).stops} == {"mag"}


def test_a_table_of_each_layer_shows_the_chosen_layer_on_the_scale_of_all(planted):
    answer = planted("slab", null=None)
    figure, scale = drawn([Side("a", "free 3,000", answer)], layer=2)
    assert (scale.low, scale.high) == (answer.values.min(), answer.values.max())
    np.testing.assert_allclose(figure.data[0].z, answer.values[2], rtol=1e-6)
    assert any(f"layer {answer.axes[0].labels[2]}" in a.text for a in figure.layout.annotations)


def test_groups_that_are_numbers_go_from_light_to_dark():
    styles = theme.categories(("2", "0", "11"))
    assert [styles[name].token for name in ("0", "2", "11")] == ["mag-2", "mag-4", "mag-6"]


def test_two_quantities_against_each_other_show_their_units_and_nulls_and_a_projection_shows_none(planted, band):
    known, _ = drawn([Side("a", "free", planted("scatter"))])
    assert known.layout.yaxis.title.text and known.layout.xaxis.showticklabels is not False
    assert [s.fillcolor for s in known.layout.shapes] == [theme.LIGHT["null-fill"]] * 2
    bare, _ = drawn([Side("a", "free", planted("scatter", null=None))])
    assert bare.layout.xaxis.showticklabels is False and not bare.layout.shapes


def test_numbers_stand_in_cells_only_where_there_is_room(planted):
    sides = [Side("a", "free", planted("heatmap")), Side("control", "step 0", planted("heatmap", 1))]
    wide, narrow = (drawn(sides, span=span)[0] for span in (7, 5))
    assert wide.data[0].texttemplate == "%{text}" and narrow.data[0].texttemplate is None


def test_the_same_expert_over_steps_is_one_path_with_its_name_at_the_end(planted, make_answer, axis):
    steps, names = ("0", "20", "320"), ("E0", "E1")
    values = np.random.default_rng(0).normal(size=(6, 2))
    points = axis("expert", 6, tuple(s for s in steps for _ in names))
    points = type(points)("expert", tuple(f"{s} {n}" for s in steps for n in names), points.groups)
    figure, _ = drawn([Side("a", "free", make_answer(values, [points, axis("coordinate", 2)], null=None))])
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    np.testing.assert_allclose(lines[1].x, values[[1, 3, 5], 0], rtol=1e-6)
    assert [a.text for a in figure.layout.annotations if a.text in names] == list(names)


def test_values_along_steps_are_a_line_a_layer_from_light_to_dark(planted):
    answer = planted("course")
    figure, scale = drawn([Side("a", "free, 7 steps", answer)])
    colours = [t.line.color for t in figure.data if t.mode == "lines+markers"]
    assert (
        scale is None
        and len(colours) == 4
        and colours[0] == theme.LIGHT["mag-2"]
        and colours[-1] == theme.LIGHT["mag-6"]
    )


def test_prompts_are_never_joined_by_a_line(make_answer, axis):
    answer = make_answer(np.zeros((12, 4)), [axis("prompt", 12), axis("category", 4)])
    assert kind_of(answer) == "heatmap"
