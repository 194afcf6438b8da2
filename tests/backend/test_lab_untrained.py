"""Checkpoints of random weights: written in a published layout, marked, and the mark in every number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import AutoConfig

from backend.cli.reproduce import reproduce
from backend.errors import Conflict, NotFound, Refusal
from backend.lab.untrained import LAYOUTS, Sizes, write_untrained

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_process")]

TINY = Sizes(model=32, expert=16, experts=6, layers=2, top_k=2, heads=2)
ASKED = {"olmoe": "geometric-coupling", "mixtral": "routing-signatures", "qwen2_moe": "dense-control"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_experiments_take_any_layout_and_mark_what_was_never_trained(
    layout: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / layout
    assert write_untrained(layout, folder, root / "data" / "tokenizer", TINY) > 10_000
    config = AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.num_hidden_layers, config.num_experts_per_tok) == (layout, 2, 2)
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(root / "data"))
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MOE_GEOMETRY_DEVICE", "cpu")
    reproduce(ASKED[layout], checkpoint=str(folder), quick=True, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert all(row["random_weights"] for row in rows)
    assert [row for row in rows if row["ours"] is not None]
    if layout == "mixtral":
        reproduce(ASKED[layout], checkpoint=str(folder), quick=True)
        for row, line in zip(rows, capsys.readouterr().out.splitlines()[2:], strict=True):
            filled = 1 + (row["ours"] is not None) + (row["low"] is not None)
            assert line.count("(random weights)") == filled, line


def test_an_experiment_on_a_paged_checkpoint_tells_all_but_what_needs_gradients(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_untrained("olmoe", tmp_path / "olmoe", root / "data" / "tokenizer", TINY)
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(root / "data"))
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MOE_GEOMETRY_PAGING", "always")
    reproduce("geometric-coupling", checkpoint=str(tmp_path / "olmoe"), quick=True, as_json=True)
    rows = {row["quantity"]: row for row in json.loads(capsys.readouterr().out)}
    pull = rows.pop("pull of the auxiliary loss on router rows over the task's")
    assert pull["verdict"] == "not run" and "gives no gradients" in pull["note"]
    assert len([row for row in rows.values() if row["ours"] is not None]) > 5


def test_what_cannot_be_written_is_refused_and_nothing_is_written_over(root: Path, tmp_path: Path) -> None:
    words = root / "data" / "tokenizer"
    with pytest.raises(NotFound, match="no layout 'dense'; there are olmoe, mixtral, qwen2_moe"):
        write_untrained("dense", tmp_path / "new", words, TINY)
    with pytest.raises(Refusal, match="top_k from 1 to experts"):
        write_untrained("olmoe", tmp_path / "new", words, Sizes(experts=2, top_k=3))
    with pytest.raises(Conflict, match="is there already"):
        write_untrained("olmoe", tmp_path, words, TINY)
    assert not (tmp_path / "new").exists()
