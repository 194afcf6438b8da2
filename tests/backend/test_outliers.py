"""Models whose experts lie or are called in a way of their own: what a capture shows is what their routers did."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from analysis.slots import LayerBatch, RouteBatch
from backend.adapters import Anatomy, Unsupported, adapt
from backend.adapters.block import tally
from backend.capture import Captured
from backend.recorder.tally import Tally
from tests.backend import tiny_moe, zoo

pytestmark = pytest.mark.slow

KINDS = "dbrx inkling_text jetmoe llama4_text longcat_flash switch_transformers zaya".split()
TEXTS = ("The cat sat on the mat, and again.", "for i in range(9): print(i)")
NEEDS = ("routes", "layers", "outputs", "gate", "experts")


@cache
def seen(kind: str) -> tuple[Any, Anatomy, Captured]:
    model = zoo.build(kind)
    anatomy = adapt(model)
    (captured,) = tiny_moe.run(model, anatomy, tiny_moe.prompts(*TEXTS), NEEDS)
    return model, anatomy, captured


def layer_of(kind: str) -> LayerBatch:
    return seen(kind)[2].layers[-1]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_every_selection_is_served_dropped_skipped_or_identity(kind: str) -> None:
    _, anatomy, captured = seen(kind)
    route = captured.route
    assert isinstance(route, RouteBatch) and len(route.keys) == sum(map(len, TEXTS))
    for n, (layer, batch) in enumerate(zip(anatomy.layers, captured.layers, strict=True)):
        parts = tally(layer, batch.indices, batch.weights)
        counts = [int(part.sum()) for part in (parts.served, parts.dropped, parts.skipped, parts.identity)]
        assert sum(counts) == len(batch.keys) * layer.top_k
        assert torch.equal(route.served[n], parts.served) and torch.equal(batch.served, parts.served)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_size_of_an_output_is_that_of_the_models_own_expert(kind: str) -> None:
    _, anatomy, captured = seen(kind)
    layer, batch = anatomy.layers[-1], captured.layers[-1]
    pairs = batch.served.nonzero()
    assert batch.output_norms[~batch.served].isnan().all()
    for token, slot in pairs[:: max(1, len(pairs) // 6)].tolist():
        out = layer.alone(int(batch.indices[token, slot]), batch.expert_input[token : token + 1])
        torch.testing.assert_close(batch.output_norms[token, slot], out.norm(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"zaya"}))
@torch.no_grad()
def test_scores_are_products_of_the_tokens_with_the_rows(kind: str) -> None:
    _, anatomy, captured = seen(kind)
    batch, rows = captured.layers[-1], anatomy.weights("router_weight", -1)
    assert rows.shape == (zoo.EXPERTS, zoo.MODEL)
    logits = batch.router_input @ rows.T
    if kind == "longcat_flash":  # it also scores identity experts, so that what it shows is no score of these alone
        assert batch.logits.isnan().all()
        logits = (batch.router_input @ seen(kind)[0].layers[-1].mlp.router.classifier.weight.T).softmax(-1)
        weights = logits.gather(1, batch.indices)
        torch.testing.assert_close(F.normalize(batch.weights, p=1), F.normalize(weights, p=1), rtol=1e-4, atol=1e-6)
    else:
        torch.testing.assert_close(batch.logits, logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_switch_drops_what_comes_after_an_experts_capacity() -> None:
    batch = layer_of("switch_transformers")
    assert torch.equal(batch.indices[:, 0], batch.logits.argmax(-1))
    taken = F.one_hot(batch.indices[:, 0], zoo.EXPERTS)
    lengths = torch.unique_consecutive(batch.keys.prompt, return_counts=True)[1].tolist()
    place = torch.cat([part.cumsum(0) for part in taken.split(lengths)])
    within = (place * taken).sum(-1) <= zoo.MORE["switch_transformers"]["expert_capacity"]
    assert torch.equal(batch.served[:, 0], within) and 0 < int(within.sum()) < len(within)
    chance = batch.logits.softmax(-1).amax(-1)
    torch.testing.assert_close(batch.weights[:, 0], torch.where(within, chance, 0))


@torch.no_grad()
def test_zaya_skips_are_no_selections_of_expert_zero() -> None:
    model = zoo.build("zaya")
    router = model.layers[-1].mlp.gate
    logits: list[Tensor] = []
    router.router_mlp.register_forward_hook(lambda _, args, out: logits.append(out))
    asked, anatomy = tiny_moe.prompts(TEXTS[0]), adapt(model)
    tiny_moe.run(model, anatomy, asked)
    chances = logits[-1].softmax(-1)[0]
    router.balancing_biases[:] = 0
    router.balancing_biases[-1] = (chances[:, :-1].amax(-1) - chances[:, -1]).median() + 1e-4  # half of them skip
    (captured,) = tiny_moe.run(model, anatomy, asked, NEEDS)
    batch, expected = captured.layers[-1], (logits[-1].softmax(-1) + router.balancing_biases).argmax(-1).flatten()
    skips = expected == zoo.EXPERTS
    assert torch.equal(batch.indices[:, 0], expected)
    assert 0 < int(skips.sum()) < len(skips) and torch.equal(batch.served[:, 0], ~skips)


def test_longcat_identity_experts_are_told_apart() -> None:
    batch = layer_of("longcat_flash")
    identity = batch.indices >= zoo.EXPERTS
    assert 0 < int(identity.sum()) and torch.equal(batch.served, ~identity)


@torch.no_grad()
def test_llama4_experts_see_score_times_token_at_weight_one() -> None:
    batch = layer_of("llama4_text")
    score = batch.logits.amax(-1, keepdim=True).sigmoid()
    assert torch.equal(batch.indices[:, 0], batch.logits.argmax(-1)) and (batch.weights == 1).all()
    torch.testing.assert_close(batch.expert_input, score * batch.router_input)


def test_llama4_with_two_experts_a_token_is_refused_with_the_reason() -> None:
    model = zoo.build("llama4_text")
    for layer in model.layers:
        layer.feed_forward.top_k = 2
    with pytest.raises(Unsupported, match="multiplies a token by a score before each of its 2 experts"):
        adapt(model)


@torch.no_grad()
def test_jetmoe_and_dbrx_weigh_their_best_scores() -> None:
    batch = layer_of("jetmoe")
    best, chosen = batch.logits.topk(zoo.TOP_K)
    assert torch.equal(batch.indices, chosen)
    torch.testing.assert_close(batch.weights, best.softmax(-1))
    batch = layer_of("dbrx")
    best, chosen = batch.logits.softmax(-1).topk(zoo.TOP_K)
    assert torch.equal(batch.indices, chosen)
    torch.testing.assert_close(batch.weights, F.normalize(best, p=1))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_recorded_step_counts_what_a_capture_shows(kind: str) -> None:
    model, anatomy, _ = seen(kind)
    counter = Tally(model, anatomy, centroids=False)
    counter.start()
    ids = torch.tensor([tiny_moe.tokenizer()(TEXTS[1]).input_ids])
    for layer in anatomy.layers:
        layer.experts.training = True  # what the recorder goes by, and nothing else here
    model(input_ids=ids, use_cache=False)
    for layer in anatomy.layers:
        layer.experts.training = False
    sums = counter.stop()
    (alone,) = tiny_moe.run(model, anatomy, tiny_moe.prompts(TEXTS[1]), ("routes",))
    assert sums is not None and alone.route is not None
    for n in range(len(anatomy.layers)):
        expected = torch.bincount(alone.route.indices[n].clamp(max=zoo.EXPERTS).flatten(), minlength=zoo.EXPERTS + 1)
        assert torch.equal(sums["selected"][n], expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
