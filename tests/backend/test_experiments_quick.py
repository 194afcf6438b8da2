"""Every experiment runs from end to end: shipped checkpoints asked, small runs trained, a verdict in each row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.cli.reproduce import reproduce
from backend.lab import experiments
from backend.lab.experiment import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_process")]

TRAINS = ("functional-asymmetry", "geometric-coupling", "kmeans-router")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiments")


@pytest.mark.parametrize("name", experiments.names())
def test_a_quick_run_has_a_row_for_each_quantity(
    name: str, root: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = store / "data"
    if not data.exists():
        data.mkdir()
        for part in ("checkpoints", "prompts", "tokenizer"):
            (data / part).symlink_to(root / "data" / part)
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(data))
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(store / "store"))
    monkeypatch.setenv("MOE_GEOMETRY_DEVICE", "cpu")
    reproduce(name, quick=True, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        assert (row["ours"] is None) == (row["verdict"] == Verdict.NOT_RUN), row
        assert (row["low"] is None) == (row["high"] is None), row
        assert row["low"] is None or row["low"] <= row["ours"] <= row["high"], row
    quantities = [row["quantity"] for row in rows]
    assert len(set(quantities)) == len(rows)
    kept = json.loads((root / "data" / "experiments" / f"{name}.json").read_text("utf-8"))["rows"]
    assert {row["quantity"] for row in kept} <= set(quantities) | {r["quantity"] for r in kept if r["ours"] is None}
    if name in TRAINS:
        assert [row for row in rows if "seeds" in row["quantity"] + row["note"] and row["low"] is not None]
    assert not list((data / "runs").glob("quick-*")) if (data / "runs").exists() else True
