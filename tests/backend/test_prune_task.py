"""The prune planner: keep-lists are those of the scores, their cost is that of the edit, a ratio of 0 costs nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from analysis.errors import BadKnob
from analysis.pruning import random_overlap
from analysis.saliency import CRITERIA
from backend.adapters import adapt
from backend.capture import NO_SHARED, CaptureOptions
from backend.checkpoints import Checkpoint
from backend.cli import app
from backend.edits import edit_from
from backend.runners import prunes
from backend.runners.messages import PruneTask, TriedReady
from tests.backend import tiny_moe, tiny_olmoe
from tests.backend.edited import TEXTS, edited, run, state
from tests.backend.test_edit_task import Held
from tests.backend.test_shared_expert_models import halved

pytestmark = pytest.mark.slow


def planned(model, ratio: float, randoms: int = 2) -> dict:
    prompts = tuple(tiny_moe.prompts(*TEXTS))
    named = Checkpoint("tiny", "tiny", "tiny", fingerprint="f")
    task = PruneTask("t", named, ratio, prompts, CaptureOptions(), randoms)
    messages = list(prunes.run(task, Held(model)))  # pyright: ignore[reportArgumentType]
    assert isinstance(messages[-1], TriedReady)
    return dict(messages[-1].told)


@pytest.mark.usefixtures("one_thread")
def test_each_criterion_has_its_list_its_ceiling_and_the_cost_of_the_edit() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    before = state(model)
    found = planned(model, 0.5)
    assert [row["criterion"] for row in found["criteria"]] == list(CRITERIA)
    assert found["kept"] == 4 and found["random_agreement"] == random_overlap(8, 4)
    plain, usage = run(model), run(model).usage
    by_usage = next(row for row in found["criteria"] if row["criterion"] == "frequency")
    for label, counts in zip(plain.shape.layers, usage, strict=True):
        keep = by_usage["layers"][label]["keep"]
        assert sorted(keep + by_usage["layers"][label]["drop"]) == list(range(8))
        assert counts[keep].min() >= counts[by_usage["layers"][label]["drop"]].max()
    for row in (by_usage, found["criteria"][6]):
        keep = [layer["keep"] for layer in row["layers"].values()]
        sums, tokens = edited(model, edit_from({"kind": "prune", "keep": keep})).by_prompt()
        assert row["perplexity"][0]["after"] == pytest.approx(float((sums.sum() / tokens.sum()).exp()), rel=1e-5)
        assert len(row["perplexity"][0]["random"]) == 2 and 0 <= row["halves"] <= 1
    table = found["agreement"]
    assert all(table[n][n] == 1 and table[n][m] == table[m][n] for n in range(len(table)) for m in range(n))
    after = state(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_shared_expert_is_on_no_list_whether_it_can_be_read_or_not(spoiled: bool) -> None:
    model = tiny_moe.build(tiny_moe.qwen2_moe)
    if spoiled:
        halved(model)
    found = planned(model, 0.5, 1)
    assert (NO_SHARED in found["notes"]) == spoiled
    for row in found["criteria"]:
        for layer in row["layers"].values():
            assert sorted(layer["keep"] + layer["drop"]) == list(range(8)) and len(layer["keep"]) == 4


def test_dropping_none_costs_nothing_and_too_many_is_refused() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    for row in planned(model, 0.0, 0)["criteria"]:
        assert row["halves"] == 1 and all(each["change"]["value"] == 0 for each in row["perplexity"])
    for ratio in (0.9, math.nan, math.inf):
        with pytest.raises(BadKnob, match=r"0 to 0\.75"):
            planned(model, ratio)


def test_a_list_is_exported_as_json_tried_and_written_as_a_checkpoint(live, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(live.settings.store))
    live.add(tiny_olmoe.prompts(8, "for-prunes"))
    keep, folder = tmp_path / "keep.json", tmp_path / "pruned"
    base = ["tiny", "--prompts", "for-prunes", "--randoms", "1"]
    planned = CliRunner().invoke(app, ["prune", *base, "--ratio", "0.5", "--keep", f"reap={keep}"])
    assert planned.exit_code == 0 and "random, mean of 1" in planned.output, planned.output
    written = json.loads(keep.read_text())
    assert written["criterion"] == "reap" and all(len(row["keep"]) == 2 for row in written["layers"].values())
    tried = CliRunner().invoke(app, ["edit", *base, "--keep", str(keep), "--export", str(folder)])
    assert tried.exit_code == 0, (tried.output, tried.exception)
    assert "2 experts kept in each layer" in tried.output
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert adapt(model).shape.experts == 2
    (tmp_path / "wrong.json").write_text("[]")
    refused = CliRunner().invoke(app, ["edit", *base, "--keep", str(tmp_path / "wrong.json")])
    assert refused.exit_code and "no keep-list" in str(refused.exception)
