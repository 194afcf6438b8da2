"""The prompt set on which MaxVio is judged has the mix that the routers were balanced on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from analysis.loads import violation
from analysis.statistic import get
from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from backend.checkpoints import inspect, load, load_tokenizer
from backend.lab.document import Document
from backend.lab.windows import windows
from backend.prompts import read_file
from backend.settings import Settings


@pytest.mark.slow
@pytest.mark.parametrize("run", ["aux", "kmeans"])
def test_max_violation_of_the_prompt_set_is_that_of_the_training_log(root: Path, settings: Settings, run: str) -> None:
    line = [json.loads(row) for row in (root / f"data/checkpoints/{run}/log.jsonl").read_text().splitlines()]
    logged = next(row for row in line if row["kind"] == "validation" and row["step"] == 3000)
    shipped = replace(settings, data=root / "data")
    checkpoint = inspect(str(root / f"data/checkpoints/{run}/step-03000"), shipped)
    model, tokenizer = load(checkpoint, "cpu"), load_tokenizer(checkpoint)
    rows = read_file(root / "data/prompts/validation.jsonl").prompts
    counts, state = get("prompt_counts"), None
    for captured in capture(model, adapt(model), tokenizer, rows, CaptureOptions(), frozenset({"routes"})):
        assert captured.route is not None
        part = counts.add(captured.route)
        state = part if state is None else counts.merge(state, part)
    assert state is not None
    found = violation(state["selected"].sum(0).double())
    torch.testing.assert_close(found, torch.tensor(logged["max_violation"]["layers"]).double(), atol=5e-3, rtol=0)


def test_windows_are_the_packed_tokens_and_name_their_documents(root: Path) -> None:
    tokenizer = Tokenizer.from_file(str(root / "data/tokenizer/tokenizer.json"))
    documents = [Document("s", f"d{i}", f"Theorem {i}. " + "all x are y. " * 5 * i) for i in range(1, 9)]
    found = windows(documents, tokenizer, 3, 16)
    stream = [i for d in documents for i in [tokenizer.token_to_id("<|endoftext|>"), *tokenizer.encode(d.text).ids]]
    assert [tokenizer.encode(w.text).ids for w in found] == [stream[w.start : w.start + 16] for w in found]
    assert found[0].start == 0
    assert found[-1].documents[-1] == documents[-1]
    assert found[-1].start == (len(stream) // 16 - 1) * 16
