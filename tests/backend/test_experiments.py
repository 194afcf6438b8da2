"""What an experiment's table says, and that it says no more than the numbers do."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.result import Axis, Interval, Null, Reason, Result
from backend.cli.reproduce import reproduce
from backend.errors import NotFound, Refusal
from backend.lab import experiments
from backend.lab.experiment import Found, Setting, Verdict, chance_of, mean_of, not_run, pairs_of, row


def result(values, low=None, high=None, null=None, **facts) -> Result:
    values = np.asarray(values, dtype=float)
    axes = tuple(Axis(f"axis{n}", tuple(map(str, range(size)))) for n, size in enumerate(values.shape))
    interval = Reason("none") if low is None else Interval(np.asarray(low, float), np.asarray(high, float), 0.95, "")
    band = Reason("none") if null is None else Null(*(np.asarray(part, float) for part in null), "")
    return Result("m", values, axes, "", band, interval, facts=facts)


def test_a_mean_has_the_mean_of_its_cells_bounds_or_none() -> None:
    assert mean_of(result([1, 3], [0, 1], [2, 7])) == Found(2, 0.5, 4.5)
    assert mean_of(result(0.5, 0.25, 0.75)) == Found(0.5, 0.25, 0.75)
    assert mean_of(result([1, np.nan], [0, np.nan], [2, np.nan])) == Found(1, 0, 2)
    for without in (result([1, 3]), result([1, 3], [0, np.nan], [2, 5]), result([np.nan], [0], [1])):
        assert math.isnan(mean_of(without).low) and math.isnan(mean_of(without).high)


def test_pairs_leave_the_diagonal_out() -> None:
    table = result([[[1, 2], [4, 1]]], np.zeros((1, 2, 2)), np.ones((1, 2, 2)), null=(0, [[[9, 5], [7, 9]]], 1))
    assert mean_of(table, pairs_of(table)) == Found(3, 0, 1)
    assert chance_of(table, "low", pairs_of(table)) == 6
    assert math.isnan(chance_of(result([1.0]), "high"))


def test_a_difference_is_decided_only_where_both_bounds_agree() -> None:
    more, less = Found(3, 2, 4), Found(1, 0, 1.5)
    assert (more - less) == Found(2, 0.5, 4) and (more - less).above(0)
    assert not (less - more).above(0) and (less - more).below(0)
    assert (more - Found(1)).above(0) is None


@pytest.mark.parametrize(
    ("shows", "verdict"), [(True, Verdict.SHOWS), (False, Verdict.DOES_NOT_SHOW), (None, Verdict.CANNOT_TELL)]
)
def test_a_row_says_what_was_decided(shows, verdict) -> None:
    told = row("d", 1.44, Found(2.0), shows).to_json()
    assert told == {
        "quantity": "d", "published": 1.44, "ours": 2.0, "low": None, "high": None, "verdict": str(verdict), "note": "",
        "random_weights": False,
    }  # fmt: skip
    assert not_run("d", None, "no card").to_json()["verdict"] == "not run"


class Balanced:
    """Answers for loads: K-Means at `low`, the others higher; counts what was asked."""

    def __init__(self, values: dict[str, tuple[float, float]]):
        self.values = values

    def __call__(self, measure, *checkpoints, prompts, **knobs):
        value, width = self.values[checkpoints[0].split("/")[0]]
        return result([value, value], [value - width] * 2, [value + width] * 2, null=(0.02, 0.0, 0.04))


def kmeans(values) -> dict[str, dict]:
    setting = Setting(
        Balanced(values), lambda run: {"kmeans": 22.0, "free": 20.0}[run.split("/")[0]], softened=str, part=str
    )
    return {each.quantity: each.to_json() for each in experiments.get("kmeans-router").run(setting)}


def test_a_planted_order_shows_and_an_overlap_does_not() -> None:
    found = kmeans({"kmeans": (0.03, 0.01), "free": (0.08, 0.01), "aux": (0.5, 0.1)})
    assert {found[f"MaxVio, {rule}"]["verdict"] for rule in ("K-Means", "loss-free bias", "auxiliary loss")} == {
        "shows"
    }
    assert found["MaxVio, loss-free bias less K-Means"]["ours"] == pytest.approx(0.05)
    assert found["perplexity, K-Means over loss-free, less 1"]["ours"] == pytest.approx(0.1)
    assert found["perplexity, K-Means over loss-free, less 1"]["verdict"] == "cannot be tested at this size"
    found = kmeans({"kmeans": (0.03, 0.05), "free": (0.08, 0.01), "aux": (0.5, 0.1)})
    assert found["MaxVio, K-Means"]["verdict"] == "does not show"
    assert found["MaxVio, auxiliary loss"]["verdict"] == "shows"


def saturation(early: float, first: float, last: float) -> dict[str, dict]:
    """Two layers over seven steps: `early` at both after a hundredth, `first` and `last` after a tenth."""
    values = np.full((7, 2), 0.9)
    values[1], values[3] = early, (first, last)

    def ask(measure, *checkpoints, prompts, **knobs):
        assert measure == "router_saturation" and len(checkpoints) == 7
        return result(values, values - 0.01, values + 0.01, null=(0.25, 0.24, 0.26))

    return {
        each.quantity: each.to_json()
        for each in experiments.get("saturation").run(Setting(ask, lambda run: 1.0, softened=str, part=str))
    }


def test_saturation_is_judged_against_blind_choices_and_depth_by_its_sign() -> None:
    share, depth = "experts of the last step, {}, after 0.7 % of training", "the same, last layer less first, {}, {}"
    tenth = "after 11 % of training"
    found = saturation(0.3, 0.5, 0.8)
    assert found[share.format("auxiliary loss")]["verdict"] == "shows"
    assert found[depth.format("K-Means", tenth)]["ours"] == pytest.approx(0.3)
    assert found[depth.format("K-Means", tenth)]["verdict"] == "shows"
    found = saturation(0.265, 0.8, 0.5)
    assert found[share.format("auxiliary loss")]["verdict"] == "does not show"
    assert found[depth.format("K-Means", tenth)]["verdict"] == "does not show"


def spectra(inputs: float, ratio: float, width: float) -> dict[str, dict]:
    """Trained experts whose first axes hold `inputs`, of `ratio` directions; blind tokens 0.5 and 20."""

    def ask(measure, checkpoint, prompts, of="inputs", quantity="explained"):
        value, null = (inputs, (0.5, 0.48, 0.52)) if quantity == "explained" else (ratio, (20.0, 19.0, 21.0))
        value = 0.4 if checkpoint.endswith("step-00000") else value
        return result([[value] * 2], [[value - width] * 2], [[value + width] * 2], null=null)

    found = experiments.get("dense-control").run(Setting(ask, lambda run: 1.0, softened=str, part=str))
    return {each.quantity: each.to_json() for each in found}


def test_a_spectrum_is_steeper_or_not_than_that_of_blind_tokens() -> None:
    names = ("variance in the first axes, inputs", "participation ratio, inputs")
    assert [spectra(0.7, 12.0, 0.05)[name]["verdict"] for name in names] == ["shows", "shows"]
    assert [spectra(0.53, 20.0, 0.05)[name]["verdict"] for name in names] == ["does not show", "does not show"]
    trained = spectra(0.7, 12.0, 0.05)["variance in the first axes, trained less untrained"]
    assert trained["ours"] == pytest.approx(0.3) and trained["verdict"] == "shows"


def test_what_ships_is_kept_with_the_command_that_made_it(root: Path) -> None:
    for name in experiments.names():
        told = json.loads((root / "data" / "experiments" / f"{name}.json").read_text())
        assert re.fullmatch(rf"moe-geometry lab reproduce {name}( --seeds \d)? --keep", told["command"])
        assert told["made"] >= "2026-11-30"
        for each in told["rows"]:
            assert {"quantity", "published", "ours", "low", "high", "verdict"} <= each.keys()
            assert each["verdict"] in [str(v) for v in Verdict]
            assert (each["ours"] is None) == (each["verdict"] == "not run")


def test_an_unknown_experiment_is_answered_with_the_known() -> None:
    with pytest.raises(
        experiments.UnknownExperiment,
        match=r"'nonsense'; there are dense-control, functional-asymmetry, geometric-coupling",
    ):
        experiments.get("nonsense")


def test_the_command_shows_what_ships_and_refuses_in_a_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(root / "data"))
    reproduce("kmeans-router", kept=True, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert rows == json.loads((root / "data" / "experiments" / "kmeans-router.json").read_text())["rows"]
    reproduce("kmeans-router", kept=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(rows) and all(line.count("|") == 7 for line in lines)
    reproduce()
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(experiments.names())
    with pytest.raises(Refusal, match="leave one of them out"):
        reproduce("kmeans-router", checkpoint="mine", kept=True)
    with pytest.raises(Refusal, match="--keep replaces the results that ship"):
        reproduce("routing-signatures", checkpoint="mine", keep=True)
    with pytest.raises(Refusal, match="kmeans-router compares trained runs; it takes no --checkpoint"):
        reproduce("kmeans-router", checkpoint="mine")
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(root / "nowhere"))
    with pytest.raises(NotFound, match="no result of this experiment ships"):
        reproduce("kmeans-router", kept=True)


@pytest.mark.slow
def test_the_results_that_ship_are_told_with_what_they_repeat(live, root: Path) -> None:
    folder = live.settings.data / "experiments"
    folder.mkdir(parents=True)
    shipped = root / "data" / "experiments" / "saturation.json"
    (folder / shipped.name).write_text(shipped.read_text())
    [told] = live.http.get("/experiments").json()["experiments"]
    assert told == {"name": "saturation"} | json.loads(shipped.read_text())
    assert told["title"] == experiments.get("saturation").title and "arXiv" in told["source"]
