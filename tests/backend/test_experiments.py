"""What an experiment's table says, and that it says no more than the numbers do."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.result import Axis
from backend.cli.reproduce import reproduce
from backend.errors import NotFound, Refusal
from backend.lab import experiments
from backend.lab.experiment import Found, Verdict, chance_of, difference, mean_of, not_run, pairs_of, row
from tests.backend.experiment import result


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


def test_a_shared_expert_is_in_no_mean_over_experts() -> None:
    experts, layers = ("E0", "E1", "shared"), Axis("layer", ("0",))
    rows = result([[1, 3, 9]], [[0, 1, 9]], [[2, 7, 9]], null=(0, [[4, 6, 90]], 1))
    rows = dataclasses.replace(rows, axes=(layers, Axis("expert", experts)))
    assert mean_of(rows) == Found(2, 0.5, 4.5) and chance_of(rows, "low") == 5
    assert mean_of(rows, ...).value == pytest.approx(13 / 3)
    table = result([[[1, 2, 9], [4, 1, 9], [9, 9, 1]]])
    table = dataclasses.replace(table, axes=(layers, Axis("expert", experts), Axis("expert_b", experts)))
    assert mean_of(table, pairs_of(table)).value == 3


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


@pytest.mark.parametrize("shows", [True, False, None])
def test_what_nobody_published_is_measured_and_not_judged(shows) -> None:
    assert row("d", None, Found(2.0, 1.0, 3.0), shows).verdict == Verdict.MEASURED
    told = [difference("d", Found(2.0, low, high), "n").note for low, high in ((1, 3), (-3, 4), (math.nan, math.nan))]
    assert told == ["n; above 0", "n; not apart from 0", "n; no interval to compare with 0"]
    assert Found(-2.0, -3.0, -1.0).against(-0.5, "chance") == "below chance"


def test_random_weights_bear_out_nothing_that_is_published() -> None:
    assert row("d", 1.44, Found(2.0), True).of_random_weights().to_json()["verdict"] == "measured"
    assert row("d", 1.44, Found(2.0), True).of_random_weights().random_weights
    assert not_run("d", 1.44, "no steps").of_random_weights().verdict == Verdict.NOT_RUN


def test_what_ships_is_kept_with_the_command_that_made_it(root: Path) -> None:
    for name in experiments.names():
        told = json.loads((root / "data" / "experiments" / f"{name}.json").read_text())
        assert re.fullmatch(rf"moe-geometry lab reproduce {name}( --seeds \d)? --keep", told["command"])
        assert told["made"] >= "2026-11-30"
        assert len({each["quantity"] for each in told["rows"]}) == len(told["rows"])
        for each in told["rows"]:
            assert {"quantity", "published", "ours", "low", "high", "verdict", "random_weights"} <= each.keys()
            assert each["published"] is not None or each["verdict"] in (Verdict.MEASURED, Verdict.NOT_RUN), each
            by = each.get("command", told["command"])
            assert re.fullmatch(rf"moe-geometry lab reproduce {name}( --seeds \d)? --keep", by)
            assert not re.search(r"\d seeds of", each["note"]) or "--seeds" in by
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
