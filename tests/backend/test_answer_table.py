"""An answer printed for people: every number of the JSON answer stands beside its cell."""

import numpy as np

from analysis.result import Axis, Interval, Null, Reason, Result
from backend.cli.table import answer_table
from backend.wire import to_json

ABOUT = {"title": "Load violation (MaxVio)", "checkpoints": [{"id": "free/step-1"}]}
LAYERS = Axis("layer", ("0", "1"))


def printed(null: Null | Reason, interval: Interval | Reason) -> list[str]:
    """The lines of a measure of two layers, the second NaN."""
    result = Result("load_violation", np.array([0.25, np.nan]), (LAYERS,), "excess", null, interval, ("read it so",))
    return answer_table(to_json(result, ABOUT)).splitlines()


def test_floor_and_interval_stand_beside_each_value() -> None:
    null = Null(np.array(0.1), np.array(0.0), np.array(0.2), "simulated", p=np.array([0.04, np.nan]))
    lines = printed(null, Interval(np.array([0.2, np.nan]), np.array([0.3, np.nan]), 0.95, "jackknife"))
    assert lines[2].split() == ["layer", "value", "low", "high", "null_mean", "null_low", "null_high", "p"]
    assert lines[3].split() == ["0", "0.25", "0.2", "0.3", "0.1", "0", "0.2", "0.04"]
    assert lines[4].split() == ["1", "NaN", "NaN", "NaN", "0.1", "0", "0.2", "NaN"]
    assert lines[5:] == ["null: simulated", "interval: jackknife", "caveat: read it so"]


def test_what_is_not_known_has_no_column_but_its_reason() -> None:
    lines = printed(Reason("no chance"), Reason("one run"))
    assert lines[2].split() == ["layer", "value"]
    assert lines[5:7] == ["null: no chance", "interval: one run"]
