"""What ships of an experiment names, row by row, the command that made it."""

from __future__ import annotations

import json
from pathlib import Path

from backend.lab import kept
from backend.lab.experiment import Found, not_run, row

NAME = "kmeans-router"


def test_a_row_that_is_not_run_now_stays_with_the_command_of_then(tmp_path: Path) -> None:
    file = tmp_path / "experiments" / f"{NAME}.json"
    before = [row("over seeds", 0.5, Found(0.4), True), row("shipped", 0.5, Found(0.4), True), not_run("new", None, "")]
    kept.keep(file, NAME, " --seeds 5", [each.to_json() for each in before])
    whole = json.loads(file.read_text())
    assert whole["command"] == f"moe-geometry lab reproduce {NAME} --seeds 5 --keep"
    assert not any("command" in each for each in whole["rows"])
    now = [row("shipped", 0.5, Found(0.3), True), not_run("over seeds", 0.5, "ask"), not_run("new", None, "ask")]
    for _ in range(2):  # kept once more, a row still names the command that made it
        kept.keep(file, NAME, "", [each.to_json() for each in now])
        told = json.loads(file.read_text())
        shipped, seeds, new = kept.rows(file)
        assert told["command"] == f"moe-geometry lab reproduce {NAME} --keep"
        assert shipped["ours"] == 0.3 and "command" not in shipped
        assert seeds["ours"] == 0.4 and seeds["command"] == whole["command"] and seeds["made"] == whole["made"]
        assert new["verdict"] == "not run"
