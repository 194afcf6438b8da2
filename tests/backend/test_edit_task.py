"""An edit asked for: what comes back is what a hand would have measured, and nobody meets the model half edited."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from backend.adapters import adapt
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.cli import app
from backend.edits.comparison import perplexities, tokens_changed
from backend.prompts import Prompt
from backend.runners import edits
from backend.runners.messages import EditTask, TriedReady
from backend.runners.residents import Resident
from tests.backend import tiny_moe, tiny_olmoe
from tests.backend.edited import run, same, state

pytestmark = pytest.mark.slow

TEXTS = [f"{n}: {word} of the {n * 7}th kind, <b>{word}</b>" for n, word in enumerate(("stone", "river", "light") * 6)]
OFF = {"kind": "off", "layer": "1", "expert": 2}
MERGE = {"kind": "merge", "layer": "1", "first": 0, "second": 5}


class Held:
    """Residents with one model, and nothing on disk."""

    def __init__(self, model):
        self.model = model

    def holds(self, checkpoint: Checkpoint) -> bool:
        return True

    def get(self, checkpoint: Checkpoint) -> Resident:
        return Resident(self.model, adapt(self.model), tiny_moe.tokenizer(), 0)


def task(edit: dict, randoms: int = 2) -> EditTask:
    prompts = tuple(Prompt(f"p{n}", text, ("even", "odd")[n % 2]) for n, text in enumerate(TEXTS))
    named = Checkpoint("tiny", "tiny", "tiny", fingerprint="f")
    return EditTask("t", named, edit, prompts, CaptureOptions(batch_tokens=200), randoms)


def told(model, edit: dict, randoms: int = 2) -> dict:
    messages = list(edits.run(task(edit, randoms), Held(model)))  # pyright: ignore[reportArgumentType]
    assert isinstance(messages[-1], TriedReady)
    return dict(messages[-1].told)


@torch.no_grad()
def losses(model) -> dict[str, float]:
    """Perplexity by category, one prompt at a time, from transformers alone."""
    sums: dict[str, list[float]] = {}
    for n, text in enumerate(TEXTS):
        ids = tiny_moe.tokenizer()(text, return_tensors="pt")["input_ids"]
        loss = F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        for name in ("all", ("even", "odd")[n % 2]):
            sums.setdefault(name, []).extend(loss.tolist())
    return {name: math.exp(sum(every) / len(every)) for name, every in sums.items()}


@pytest.mark.usefixtures("one_thread")
def test_the_perplexity_of_an_edit_is_that_of_a_model_edited_by_hand() -> None:
    model, twin = (tiny_moe.build(tiny_moe.mixtral) for _ in range(2))
    found = told(model, OFF)
    router = adapt(twin).layers[1].router

    def forward(x: torch.Tensor):
        logits = F.linear(x.reshape(-1, x.shape[-1]), router.weight)
        logits[:, 2] = -torch.inf
        values, indices = logits.softmax(-1, dtype=torch.float).topk(tiny_moe.TOP_K)
        return logits, values / values.sum(-1, keepdim=True), indices

    plain = losses(twin)
    router.forward = forward
    by_hand = losses(twin)
    assert [row["category"] for row in found["perplexity"]] == ["all", "even", "odd"]
    for row in found["perplexity"]:
        name = row["category"]
        assert row["before"] == pytest.approx(plain[name], rel=1e-5)
        assert row["after"] == pytest.approx(by_hand[name], rel=1e-5)
        assert row["change"]["value"] == pytest.approx(math.log(by_hand[name] / plain[name]), abs=1e-5)
        assert len(row["random"]) == 2
    assert found["perplexity"][0]["change"]["low"] < found["perplexity"][0]["change"]["high"]
    assert [row["changed"] for row in found["routing"]][:1] == [0] and found["routing"][1]["changed"] > 0
    assert found["random"]["edits"] and "expert 2 of layer 1 off" not in found["random"]["edits"]
    assert told(model, OFF) == found  # random edits included


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("edit", (OFF, {"kind": "topk", "k": 1}, MERGE))
def test_between_two_batches_the_model_is_untouched(edit: dict) -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    before, plain, seen = state(model), run(model), 0
    for _ in edits.run(task(edit, 1), Held(model)):  # pyright: ignore[reportArgumentType]
        seen += 1
        after = state(model)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert adapt(model).shape.top_k == tiny_moe.TOP_K
        if seen % 5 == 0:
            assert same(run(model), plain)  # as another task would find it
    assert seen > 6


@pytest.mark.usefixtures("one_thread")
def test_changed_tokens_are_told_as_text_with_the_largest_change_first() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    found = told(model, {"kind": "topk", "k": 1})
    shown = found["tokens_changed"]["shown"]
    assert 0 < len(shown) <= found["tokens_changed"]["count"] <= found["tokens_changed"]["of"] == found["tokens"]
    moved = [abs(each["loss_change"]) for each in shown if each["loss_change"] is not None]
    assert moved == sorted(moved, reverse=True)
    assert all(each["before"] != each["after"] for each in shown)
    assert found["random"] == {"edits": [], "reason": "a change of k names no expert, so there is none to draw"}
    again = run(model)
    assert tokens_changed(again, again, tiny_moe.tokenizer())["count"] == 0
    assert all(row["change"]["value"] == 0 for row in perplexities(again, again, []))


def test_the_api_tries_an_edit_and_refuses_in_a_sentence(live) -> None:
    live.add(tiny_olmoe.prompts(12, "for-edits"))
    asked = {"checkpoint": "tiny", "prompts": "for-edits", "edit": {"kind": "off", "layer": "1", "expert": 3}}
    found = live.http.post("/edits", json=asked | {"randoms": 2}).json()
    assert found["checkpoint"] == "tiny" and found["prompts"] == 12 and len(found["random"]["edits"]) == 2
    taken = live.http.post("/edits", json=asked | {"edit": {"kind": "routers", "checkpoint": "other"}}).json()
    assert taken["told"] == "routers of other" and max(r["changed"] for r in taken["routing"]) > 0
    for edit, status, said in (
        ({"kind": "off", "layer": "7", "expert": 0}, 422, "the layers are 0, 1"),
        ({"kind": "melt"}, 422, "known: "),
        ({"kind": "routers", "checkpoint": "nobody"}, 404, "known: "),
    ):
        refused = live.http.post("/edits", json=asked | {"edit": edit})
        assert refused.status_code == status and said in refused.json()["detail"], refused.json()


def test_the_command_line_prints_a_table_and_names_one_edit(live, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(live.settings.store))
    file = tmp_path / "few.txt"
    file.write_text("\n".join(TEXTS), "utf-8")
    base = ["edit", "tiny", "--prompts", str(file), "--randoms", "1"]
    shown = CliRunner().invoke(app, [*base, "--merge", "0:1+3"])
    assert shown.exit_code == 0, shown.output
    assert "experts 1 and 3 of layer 0 merged" in shown.output and "would save 400 parameters" in shown.output
    for wrong, said in ((["--off", "05"], "LAYER:EXPERT"), (["--off", "0:1", "--k", "1"], "One edit at a time")):
        refused = CliRunner().invoke(app, [*base, *wrong])
        assert refused.exit_code and said in str(refused.exception)
