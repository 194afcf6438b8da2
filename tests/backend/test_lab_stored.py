"""Stored steps as experiments ask of them: dense blocks as experts, parameters, batches, parts of a prompt set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from analysis.errors import NotComparable
from analysis.lab.model import register
from backend.lab.dense_copies import as_copies
from backend.lab.stored import Stored

pytestmark = pytest.mark.slow


@pytest.fixture
def stored(root: Path, tmp_path: Path) -> Stored:
    return Stored(root / "data", tmp_path)


def test_a_dense_step_as_experts_is_the_same_function_and_its_experts_the_same_blocks(
    stored: Stored, root: Path
) -> None:
    register()
    step = root / "data" / "checkpoints" / "dense" / "step-06000"
    target = Path(stored.as_experts("dense/step-06000"))
    dense, copies = (AutoModelForCausalLM.from_pretrained(each).eval() for each in (step, target))
    assert copies.config.num_experts == copies.config.num_experts_per_tok == 2
    ids = torch.arange(20, 60)[None]
    with torch.no_grad():
        assert torch.equal(dense(ids).logits, copies(ids).logits)
    theirs = copies.state_dict()
    for layer in range(4):
        for copy in theirs[f"model.layers.{layer}.mlp.experts.down_proj"]:
            assert torch.equal(copy, dense.state_dict()[f"model.layers.{layer}.mlp.down_proj.weight"])


def test_a_step_with_experts_is_not_copied_into_more(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="aux/step-00000 has the router 'softmax_aux'"):
        as_copies(root / "data" / "checkpoints" / "aux" / "step-00000", tmp_path / "copies")
    assert not (tmp_path / "copies").exists()


def test_what_routers_learn_is_counted_and_batches_are_those_of_the_log(stored: Stored, root: Path) -> None:
    assert [stored.parameters(f"{run}/step-06000") for run in ("kmeans", "free")] == [0, 4 * 8 * 64]
    lines = map(json.loads, (root / "data/checkpoints/free/log.jsonl").read_text().splitlines())
    last = [line["batch_max_violation"] for line in lines if line["kind"] == "train"][-1]
    found = stored.batches("free/step-06000")
    assert len(found) == 10 and found[-1] == pytest.approx(sum(last) / 4)
    assert stored.perplexity("free/step-06000") == pytest.approx(18.97, abs=0.01)


def test_a_quick_question_is_put_to_the_first_prompts_of_each_category(root: Path, tmp_path: Path) -> None:
    few = Stored(root / "data", tmp_path, most=5)

    def categories(file: str | None) -> Counter[str]:
        return Counter(json.loads(row)["category"] for row in Path(str(file)).read_text("utf-8").splitlines())

    assert set(categories(few.asked("four-tasks")).values()) == {5}
    assert categories(few.part("four-tasks", "story")) == {"story": 5}
    assert few.asked(None) is None and few.asked(few.part("four-tasks", "code")) == few.part("four-tasks", "code")
    whole = Stored(root / "data", tmp_path)
    assert whole.asked("four-tasks") == "four-tasks" and categories(whole.part("four-tasks", "fact")) == {"fact": 20}


def test_a_step_of_a_shipped_router_moves_rows_as_the_closed_forms_say(stored: Stored) -> None:
    found = stored.identities("aux-s1/step-06000")
    assert max(found[part] for part in ("router", "gate", "up", "mean_row")) < 1e-12
