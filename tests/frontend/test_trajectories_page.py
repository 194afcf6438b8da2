"""A run on one clock: which steps, how they are told, what moves with the slider, what the tiles show."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from frontend.answer import Axis
from frontend.client import Job, NotAsked
from frontend.clock import Clock, clock_of, from_labels, why_no_tokens
from frontend.filling import compose, depends, fill
from frontend.pages import trajectories
from frontend.panel import plate
from frontend.places import Place, questions
from frontend.state import Material, parse
from frontend.stepbar import strip
from frontend.views import Side, draw_series, kind_of
from frontend.views.multiples import columns_of, ticks
from frontend.views.series import course
from frontend.views.states import changes
from frontend.words import count
from tests.frontend.planted import CHECKPOINTS, MEASURES, SETS
from tests.frontend.schema import checked, drawn
from tests.frontend.test_pages import walk, words_of

pytestmark = pytest.mark.anyio
MATERIAL = Material(tuple(CHECKPOINTS), tuple(SETS), tuple(MEASURES))
COUNTED = replace(MATERIAL, checkpoints=tuple(c | {"tokens": 2048 * c["step"]} for c in CHECKPOINTS))
SERIES = Place("expert_load", sides="series")
CLOCK = from_labels(("0", "500", "2000"))


def state_of(query="", material=MATERIAL):
    return parse("/trajectories", query, material)


def test_a_clock_has_all_steps_of_as_run_in_order_and_tells_them_as_asked():
    clock = clock_of(COUNTED, state_of("?a=free/step-00500"))
    assert (clock.steps, clock.told, clock.title) == (("0", "500", "2000"), ("0", "500", "2,000"), "training step")
    assert clock.words(2) == "step 2,000"
    tokens = clock_of(COUNTED, state_of("?k.run.axis=tokens"))
    assert (tokens.steps, tokens.told) == (("0", "500", "2000"), ("0", "1.02M", "4.1M"))
    assert tokens.words(1) == "1.02M tokens"


def test_tokens_that_nobody_counted_leave_the_axis_in_steps_and_the_button_says_why():
    state = state_of("?k.run.axis=tokens")
    assert clock_of(MATERIAL, state).title == "training step"
    assert "3 of 3 steps do not say how many tokens" in why_no_tokens(MATERIAL.steps_of(state.a))
    buttons = {words_of(c): c for c in walk(strip(state, MATERIAL)) if type(c).__name__ == "Button"}
    assert getattr(buttons["tokens"], "aria-disabled") == "true"
    assert "No tokens: 3 of 3 steps" in words_of(strip(state, MATERIAL))
    told = {words_of(c): c for c in walk(strip(state, COUNTED)) if type(c).__name__ == "Button"}
    assert getattr(told["tokens"], "aria-pressed") == "true" and not hasattr(told["tokens"], "aria-disabled")


def test_stages_come_one_after_the_other_although_their_steps_begin_anew():
    stages = [("stage2", 10, 3), ("stage1", 900, 2), ("stage1", 10, 1)]
    checkpoints = tuple(
        CHECKPOINTS[0] | {"id": f"r/{stage}-{step}", "run": "r", "step": step, "stage": stage, "tokens": tokens}
        for stage, step, tokens in stages
    )
    material = replace(MATERIAL, checkpoints=checkpoints)
    clock = clock_of(material, state_of("?a=r/stage1-10", material))
    assert clock.steps == ("stage1-10", "stage1-900", "stage2-10") and clock.told[2] == "stage2 10"
    assert material.last_of_runs()[0]["id"] == "r/stage2-10"


def test_a_checkpoint_alone_has_no_clock_and_the_strip_says_so():
    alone = replace(MATERIAL, checkpoints=tuple(c for c in CHECKPOINTS if c["id"] == "free/step-02000"))
    state = state_of("?a=free/step-02000", alone)
    assert clock_of(alone, state) is None
    assert "no other steps loaded" in words_of(strip(state, alone))


def test_the_strip_tells_the_browser_every_step_and_marks_the_ends_in_words():
    (bar,) = [c for c in walk(strip(state_of(), MATERIAL)) if getattr(c, "id", None) == "step-bar"]
    assert json.loads(getattr(bar, "data-steps")) == ["0", "500", "2000"]
    assert json.loads(getattr(bar, "data-told"))[1] == "step 500"
    assert "first" in words_of(strip(state_of(), MATERIAL)) and "last" in words_of(strip(state_of(), MATERIAL))


@pytest.mark.parametrize(("n", "text"), [(0, "0"), (999, "999"), (40960, "41k"), (2.048e6, "2.05M"), (4e9, "4B")])
def test_large_counts_are_short(n, text):
    assert count(n) == text


async def test_the_page_has_one_strip_and_the_curated_panels(full):
    page = await trajectories.layout(full, state_of(), MATERIAL)
    assert [getattr(c, "id", None) for c in walk(page)].count("step-strip") == 1
    assert "expert_load-series" in str(page)


async def test_a_series_asks_every_step_of_the_run_and_is_drawn_on_its_clock(full):
    asked = questions(SERIES, state_of(), MATERIAL)
    assert [a.question.checkpoints for a in asked] == [(f"aux/step-{s:05d}",) for s in (0, 500, 2000)]
    filled = await fill(full, SERIES, state_of(), MATERIAL)
    assert filled.panel.state == "done" and len(filled.figure["frames"]) == 3
    text = words_of(plate(filled.panel))
    assert "A aux, 3 steps" in text and "At step 0 from" in text and "at step 2000 from" in text


async def test_a_series_grows_while_jobs_run_and_can_be_asked_where_one_is_missing(full):
    filled = await fill(full, SERIES, state_of(), MATERIAL)
    found = list(zip(filled.panel.asked, (s.answer for s in filled.panel.sides), strict=True))
    running = compose(SERIES, state_of(), MATERIAL, [*found[:2], (found[2][0], Job("j", ""))])
    assert running.panel.state == "partial" and running.figure is not None
    missing = compose(SERIES, state_of(), MATERIAL, [*found[:2], (found[2][0], NotAsked({"seconds": 1}))])
    assert missing.panel.state == "not-asked"


def test_a_plate_of_the_run_depends_on_its_axis_and_not_on_the_step_shown():
    told = [depends(SERIES, state_of(q, COUNTED), COUNTED) for q in ("", "?at=500", "?k.run.axis=tokens")]
    assert told[0] == told[1] != told[2]


def loads(make_answer, axis, values, **more):
    return make_answer(values, [axis("layer", len(values)), axis("expert", len(values[0]))], **more)


def test_values_stand_at_their_own_step_and_a_missing_one_is_a_gap(make_answer, axis):
    sides = [
        Side("a", name, loads(make_answer, axis, [[at, 1.0], [2.0, 3.0]])) for name, at in (("2000", 5.0), ("0", 4.0))
    ]
    found = course(sides, CLOCK)
    np.testing.assert_array_equal(found.values[:, 0, 0], [4, np.nan, 5])
    assert found.values.shape == (3, 2, 2) and found.null_low is None


def test_a_mean_over_pairs_leaves_out_the_diagonal_the_shared_expert_and_what_is_undefined(make_answer, axis, band):
    labels = ("E0", "E1", "E2", "shared")
    pairs = np.full((1, 4, 4), 9.0)
    pairs[0, :3, :3] = [[1, 0.2, 0.4], [0.2, 1, np.nan], [0.4, np.nan, 1]]
    answer = make_answer(pairs, [axis("layer", 1), Axis("expert", labels), Axis("expert_b", labels)])
    assert course([Side("a", "0", answer)], CLOCK).values[0, 0, 0] == pytest.approx(0.3)
    bounds = band(np.where(np.isfinite(pairs), pairs - 0.1, np.nan), np.where(np.isfinite(pairs), pairs + 0.1, np.nan))
    found = course([Side("a", "0", replace(answer, interval=bounds))], CLOCK)
    assert (found.low[0, 0, 0], found.high[0, 0, 0]) == (pytest.approx(0.2), pytest.approx(0.4))
    bounds.low[0, 0, 1] = np.nan
    lost = course([Side("a", "0", replace(answer, interval=bounds))], CLOCK)
    assert np.isnan(lost.low[0, 0, 0]) and lost.values[0, 0, 0] == pytest.approx(0.3)
    empty = replace(answer, values=np.full((1, 4, 4), np.nan))
    assert np.isnan(course([Side("a", "0", empty)], CLOCK).values).all()


def moved(figure, step):
    """What the frame of a step puts where: x and y by trace."""
    frame = figure.frames[step]
    return {trace: (list(data.x), list(data.y)) for trace, data in zip(frame.traces, frame.data, strict=True)}


def test_every_figure_of_a_run_brings_a_frame_for_each_step_and_marks_first_and_last(make_answer, axis, band):
    r = np.random.default_rng(0)
    places = r.normal(size=(2, 3, 4, 2))
    tracks = make_answer(places, [axis("layer", 2), axis("step", 3), axis("expert", 4), axis("coordinate", 2)])
    in_use = make_answer(np.ones((3, 2, 4)), [axis("step", 3), axis("layer", 2), axis("expert", 4)])
    line = make_answer(r.random((3, 2)), [axis("step", 3), axis("layer", 2)], null=band(0.1, 0.2))
    assert [kind_of(a) for a in (tracks, in_use, line)] == ["tracks", "states", "course"]
    figures = [drawn([Side("a", "r", a)], 1, clock=CLOCK)[0] for a in (tracks, in_use, line)]
    one = [Side("a", s, loads(make_answer, axis, r.random((2, 4)), null=band(0.9, 1.1))) for s in CLOCK.steps]
    figures.append(checked(draw_series(one, 1, CLOCK, 12)))
    for figure in figures:
        assert figure.layout.meta["steps"] == 3 and [f.name for f in figure.frames] == ["0", "1", "2"]
        assert moved(figure, 0) != moved(figure, 2)
        said = " ".join(a.text for a in figure.layout.annotations) + str(figure.layout.xaxis.title.text)
        assert "the step shown" in said
        if figure is not figures[1]:  # a grid of cells has its ends on its axis
            symbols = {s for t in figure.data for s in np.ravel(t.marker.symbol) if t.type == "scatter"}
            assert {"circle-open", "diamond"} <= symbols
        if figure is not figures[0]:
            assert any("first" in str(t) for a in figure.select_xaxes() for t in a.ticktext or ())
    for at in range(3):
        x, y = next(iter(moved(figures[0], at).values()))
        np.testing.assert_allclose(np.stack([x, y], -1), places[0, at], atol=1e-6)


def test_hovering_names_expert_and_step(make_answer, axis):
    places = np.random.default_rng(1).normal(size=(1, 3, 2, 2))
    labels = [Axis("layer", ("0",)), axis("step", 3), Axis("expert", ("E0", "E1")), axis("coordinate", 2)]
    figure, _ = drawn([Side("a", "r", make_answer(places, labels))], clock=CLOCK)
    path = next(t for t in figure.data if t.name == "path")
    named = dict(zip(path.text, zip(path.x, path.y, strict=True), strict=True))
    np.testing.assert_allclose(named["E1, step 500"], places[0, 1, 1], atol=1e-6)
    assert {"E0, step 0, first", "E1, step 2,000, last"} <= {x for t in figure.data for x in t.text or ()}


def test_births_and_deaths_are_marked_by_shape_where_they_happened(make_answer, axis):
    alive = np.ones((3, 1, 3))
    alive[0, 0, 1] = alive[2, 0, 2] = 0
    assert changes(alive)[:, 0].tolist() == [[0, 1, 0], [0, 0, -1]]
    figure, _ = drawn([Side("a", "r", make_answer(alive, [axis("step", 3), axis("layer", 1), axis("expert", 3)]))])
    marks = {t.name: (t.marker.symbol, list(t.x), list(t.y)) for t in figure.data if t.name in ("born", "died")}
    assert marks == {"born": ("triangle-up", [1], [1]), "died": ("x", [2], [2])}


def test_tiles_fill_wide_plates_and_ticks_keep_the_ends():
    assert [columns_of(n, 12) for n in (1, 4, 6, 8, 16, 24)] == [1, 4, 6, 4, 8, 8]
    assert [columns_of(n, 6) for n in (1, 4, 16, 48)] == [1, 2, 4, 6]
    long = from_labels(tuple(map(str, range(40))))
    assert ticks(long, 5) == [0, 13, 26, 39] and ticks(CLOCK, 1) == [0, 2]
    seven, prime = (from_labels(tuple(map(str, range(n)))) for n in (7, 14))
    assert ticks(seven, 6) == [0, 2, 4, 6] and ticks(seven, 7) == list(range(7))
    assert ticks(prime, 5) == [0, 3, 6, 10, 13]


def test_an_axis_of_another_length_is_told_by_its_own_labels():
    assert CLOCK.of(Axis("step", ("a", "b"))) == Clock(("a", "b"), ("a", "b"), "training step")
    assert CLOCK.of(Axis("step", ("x", "y", "z"))) is CLOCK
