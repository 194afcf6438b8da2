"""A typed text: what is told of its tokens is what transformers itself computes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from analysis.lab.model import register
from backend.adapters import adapt
from backend.capture import CaptureOptions
from backend.sentence import read

pytestmark = pytest.mark.slow

TEXT = "def area(r):\n    return 3.14 * r ** 2  # été"


@pytest.fixture(scope="module")
def shipped(root: Path):
    register()
    folder = root / "data" / "checkpoints" / "aux" / "step-06000"
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def test_a_text_is_routed_as_the_model_itself_routes_it(shipped) -> None:
    model, tokenizer = shipped
    found = read(model, adapt(model), tokenizer, TEXT, CaptureOptions())
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        plain = model(ids, output_router_logits=True)
    probabilities = [layer.softmax(-1) for layer in plain.router_logits]
    assert found.layers == ("0", "1", "2", "3") and (found.experts, found.top_k) == (8, 2)
    for layer, p in enumerate(probabilities):
        best = p.topk(2)
        assert [sorted(row) for row in found.indices[layer]] == [sorted(row) for row in best.indices.tolist()]
        weights = best.values / best.values.sum(-1, keepdim=True)
        told = torch.tensor([sorted(row, reverse=True) for row in found.weights[layer]])
        assert_close(told, weights, atol=2e-6, rtol=0)
        assert_close(torch.tensor(found.entropy[layer]), torch.special.entr(p).sum(-1), atol=2e-6, rtol=0)
    shares = plain.logits[0].softmax(-1).topk(5)
    assert_close(
        torch.tensor([[n["probability"] for n in row] for row in found.following]), shares.values, atol=2e-6, rtol=0
    )
    for row, token in zip(found.following, shares.indices[:, 0].tolist(), strict=True):
        whole = tokenizer.decode([token])
        assert row[0]["piece"] == (tokenizer.convert_ids_to_tokens(token) if "\ufffd" in whole else whole)


def test_pieces_and_spans_give_the_text_back(shipped) -> None:
    model, tokenizer = shipped
    found = read(model, adapt(model), tokenizer, TEXT, CaptureOptions())
    covered = {place for token in found.tokens for place in range(*token["span"])}
    assert covered == set(range(len(TEXT))) and {token["role"] for token in found.tokens} == {"prompt"}
    whole = [t for t in found.tokens if TEXT[slice(*t["span"])] == t["piece"]]
    assert len(whole) >= len(found.tokens) - 4  # parts of the two accented letters are written as the tokenizer does


def test_what_the_model_writes_is_told_apart_and_routed_too(shipped) -> None:
    model, tokenizer = shipped
    found = read(model, adapt(model), tokenizer, TEXT, CaptureOptions(generate=6))
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    grown = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)[0]
    written = [token for token in found.tokens if token["role"] == "generated"]
    assert [t["piece"] for t in written] == [tokenizer.decode([i]) for i in grown[ids.shape[1] :].tolist()]
    assert all(token["span"] is None for token in written)
    assert len(found.indices[0]) == len(found.following) == len(grown)
    assert not model._forward_hooks


@pytest.fixture
def dense(live, root: Path) -> Iterator[str]:
    """A dense model among those the backend knows, for as long as a test takes."""
    folder = live.services.settings.extra_roots[0] / "without-experts"
    shutil.copytree(root / "data" / "checkpoints" / "dense" / "step-00000", folder)
    yield folder.name
    shutil.rmtree(folder)


def test_the_api_reads_a_text_and_refuses_in_a_sentence(live, dense: str) -> None:
    every = live.http.get("/checkpoints").json()["checkpoints"]
    moe = next(c for c in every if not c["error"] and not c["dense"])
    told = live.http.post("/sentences", json={"checkpoint": moe["id"], "text": "Routers rout.", "generate": 2}).json()
    assert told["checkpoint"] == moe["id"] and told["device"] == "cpu" and not told["random_weights"]
    assert [t["role"] for t in told["tokens"]][-3:] == ["prompt", "generated", "generated"]
    assert told["seconds"] > 0 and len(told["weights"]) == len(told["layers"]) == moe["moe_layers"]
    refused = live.http.post("/sentences", json={"checkpoint": dense, "text": "x"})
    assert refused.status_code == 422 and "has no router" in refused.json()["detail"]
    unknown = live.http.post("/sentences", json={"checkpoint": "nobody", "text": "x"})
    assert unknown.status_code == 404 and "known: " in unknown.json()["detail"]
    long = live.http.post("/sentences", json={"checkpoint": moe["id"], "text": "x" * 20_001})
    assert long.status_code == 422 and "20000" in long.json()["detail"]
