"""The page of training runs: which are shown, what is drawn of them, what is said where nothing was recorded."""

from __future__ import annotations

import numpy as np

from frontend.pages.live import QUANTITIES, choice, figures, reading, trainers
from frontend.views import timeline
from tests.frontend.schema import checked

RUNS = [{"name": name} for name in ("new", "old", "older")]


def run(name, *points):
    return {"name": name, "points": list(points), "trainers": {}}


def point(step, violation, **more):
    return {"step": step, "max_violation": violation, "load": [[1.0, 1.0]], "trainers": {}} | more


def test_the_last_run_is_followed_unless_the_url_names_one_and_none_stands_beside_itself():
    assert choice(RUNS, {}) == ("new",)
    assert choice(RUNS, {"live.run": "old", "live.beside": "older"}) == ("old", "older")
    assert choice(RUNS, {"live.run": "old", "live.beside": "old"}) == ("old",)
    assert choice(RUNS, {"live.beside": "unheard"}) == ("new",)


def test_a_line_is_the_mean_over_layers_and_the_band_their_range():
    runs = [("a", [point(5, [0.1, 0.5]), point(10, [0.3, None])]), ("b", [point(5, [None, None])])]
    figure = checked(timeline.draw(runs, "max_violation", "excess (0 is balanced)"))
    low, high, mean = figure.data
    assert list(mean.x) == [5, 10] and np.allclose(mean.y, [0.3, 0.3])
    assert np.allclose(low.y, [0.1, 0.3]) and np.allclose(high.y, [0.5, 0.3])
    assert len(figure.data) == 3 and figure.layout.yaxis.title.text == "excess"


def test_the_trainers_own_names_stand_beside_ours_and_what_a_record_cannot_say_has_its_reason():
    told = run("a", point(5, [0.1], trainers={"prime-rl: max_vio": 0.125}))
    told |= {"trainers": {"prime-rl: max_vio": "MaxVio"}, "untold": {"Megatron-LM: z_loss": "logits are not recorded"}}
    drawn = str(trainers([told]).to_plotly_json())
    assert all(
        text in drawn for text in ("prime-rl: max_vio", "0.125", "Megatron-LM: z_loss", "logits are not recorded")
    )


def test_what_was_not_recorded_has_no_figure_and_says_what_it_takes():
    drawn = figures([run("a", point(5, [0.1, 0.2]))])
    assert drawn["max_violation"] is not None and set(drawn) == set(QUANTITIES)
    assert drawn["row_cosine"] is None and drawn["dead_experts"] is None
    assert reading([run("a", point(5, [0.1, 0.2]))], "row_cosine") == "Not recorded: it takes geometry=True."
    assert reading([run("a", point(5, [0.1, 0.3]))], "max_violation") == "a at step 5: mean 0.2, layers 0.1 to 0.3."
    assert figures([run("a")])["max_violation"] is None
