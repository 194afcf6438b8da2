"""A capture reads what the model does: same routing, no padding, no trace left behind, nobody else's tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from analysis.errors import GeometryError, UnknownName
from analysis.expert import Expert
from analysis.slots import LayerBatch, RouteBatch
from analysis.statistic import get
from backend.adapters import AdapterLies, adapt
from backend.adapters.fused import FusedLayer
from backend.adapters.law import Verified
from backend.adapters.watch import Extra, watch
from backend.capture import Captured, CaptureOptions, capture, verified
from tests.backend import tiny_moe
from tests.backend.tiny_moe import EXPERTS, TOP_K

pytestmark = pytest.mark.slow

TEXTS = (
    "for n in range(9):\n    print(n)",
    "A fact.",
    "Once upon a time there was a cat, and it slept all day long.",
    "2+2=4",
)


@pytest.fixture(params=sorted(tiny_moe.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def built(family: str, implementation: str = "eager") -> Any:
    return tiny_moe.build(tiny_moe.FAMILIES[family], implementation)


def route(captured: Captured) -> RouteBatch:
    assert captured.route is not None
    return captured.route


def by_prompt(captured: list[Captured]) -> dict[str, dict[str, torch.Tensor]]:
    """Indices and weights of each prompt's tokens."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for batch in map(route, captured):
        for row, name in enumerate(batch.prompts.ids):
            mine = batch.keys.prompt == row
            found[name] = {"indices": batch.indices[:, mine], "weights": batch.weights[:, mine]}
    return found


def hooks_of(model: torch.nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + ("_apply_gate" in m.__dict__) for m in model.modules()
    )


def test_routing_is_the_models_own_recomputed_from_its_router_logits() -> None:
    for make, renormalised in ((tiny_moe.olmoe, False), (tiny_moe.mixtral, True)):
        model = tiny_moe.build(make)
        (captured,) = tiny_moe.run(model, adapt(model), tiny_moe.prompts(TEXTS[0]))
        with torch.no_grad():
            out = model(torch.tensor([list(tiny_moe.tokenizer()(TEXTS[0])["input_ids"])]), output_router_logits=True)
        for layer, logits in enumerate(out.router_logits):
            probabilities = logits.softmax(-1)
            weights, indices = probabilities.topk(TOP_K)
            weights = weights / weights.sum(-1, keepdim=True) if renormalised else weights
            batch, ranked = route(captured), probabilities.topk(TOP_K + 1).values
            assert torch.equal(batch.indices[layer], indices)
            torch.testing.assert_close(batch.weights[layer], weights)
            torch.testing.assert_close(batch.margins[layer], ranked[:, -2] - ranked[:, -1])
        counts = get("prompt_counts").add(route(captured))["selected"][0]
        own = torch.stack(
            [torch.bincount(z.topk(TOP_K).indices.flatten(), minlength=EXPERTS) for z in out.router_logits]
        )
        assert torch.equal(counts, own)


def test_padding_never_counts(family: str) -> None:
    model = built(family)
    anatomy, asked = adapt(model), tiny_moe.prompts(*TEXTS)
    together = by_prompt(tiny_moe.run(model, anatomy, asked))
    alone = by_prompt(tiny_moe.run(model, anatomy, asked, batch_tokens=1))
    for prompt, text in zip(asked, TEXTS, strict=True):
        assert together[prompt.id]["indices"].shape[1] == len(text.encode())
        assert torch.equal(together[prompt.id]["indices"].sort(-1).values, alone[prompt.id]["indices"].sort(-1).values)
        # 1e-4: a batch adds up in another order than a single prompt, three layers deep in float32.
        weights = (found[prompt.id]["weights"].sort(-1).values for found in (together, alone))
        torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-4)


def test_selections_are_tokens_times_k_in_every_layer(family: str) -> None:
    model = built(family)
    anatomy, asked = adapt(model), tiny_moe.prompts(*TEXTS, "")
    state = get("prompt_counts").empty(anatomy.shape)
    for captured in tiny_moe.run(model, anatomy, asked, batch_tokens=70):
        state = get("prompt_counts").merge(state, get("prompt_counts").add(route(captured)))
    tokens = torch.tensor([len(p.text.encode()) for p in asked])
    order = [state.prompts.ids.index(p.id) for p in asked]
    assert torch.equal(state["tokens"][order], tokens)
    expected = (tokens * anatomy.shape.top_k)[:, None].expand(-1, len(anatomy.layers))
    for name in ("selected", "served"):
        assert torch.equal(state[name][order].sum(-1), expected)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_a_watched_pass_gives_bitwise_the_same_logits(family: str, implementation: str) -> None:
    model = built(family, implementation)
    ids = torch.arange(40, 80).reshape(2, 20)
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
        with watch(adapt(model), torch.arange(40), 40, Extra(norms=True)):
            during = model(ids, use_cache=False).logits
        assert torch.equal(before, during) and torch.equal(before, model(ids, use_cache=False).logits)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_what_layers_show_adds_up(family: str, implementation: str) -> None:
    model = built(family, implementation)
    anatomy = adapt(model)
    (captured,) = tiny_moe.run(model, anatomy, tiny_moe.prompts(*TEXTS), ("routes", "outputs"))
    assert [batch.layer for batch in captured.layers] == list(range(len(anatomy.layers)))
    for n, batch in enumerate(captured.layers):
        if family == "lab_expert_choice":  # a weight of 0 says who was not taken: weights are no shares of a score
            assert batch.probabilities.isnan().all() and (batch.weights == 0).any()
        else:
            torch.testing.assert_close(batch.probabilities.sum(-1), torch.ones(len(batch.keys)))
            shares = batch.weights / batch.weights.sum(-1, keepdim=True)
            chosen = batch.probabilities.gather(-1, batch.indices)
            torch.testing.assert_close(shares, chosen / chosen.sum(-1, keepdim=True), rtol=1e-4, atol=1e-5)
        assert torch.equal(batch.indices, route(captured).indices[n])
        for token, slot in ((0, 0), (7, TOP_K - 1)):
            output = anatomy.layers[n].alone(int(batch.indices[token, slot]), batch.expert_input[token : token + 1])
            torch.testing.assert_close(batch.output_norms[token, slot], output.detach().norm(), rtol=1e-5, atol=1e-6)
            assert batch.output_extremes is not None
            ends = torch.stack(output.detach().aminmax())
            torch.testing.assert_close(batch.output_extremes[token, slot], ends, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_activations_are_observed_where_the_model_shows_them(monkeypatch: Any, implementation: str) -> None:
    projected = []
    project = Expert.project
    monkeypatch.setattr(Expert, "__call__", lambda expert, x: pytest.fail("recomputed what was to be observed"))
    monkeypatch.setattr(Expert, "project", lambda expert, h: projected.append(len(h)) or project(expert, h))
    model = built("gpt_oss", implementation)
    with torch.no_grad(), watch(adapt(model), torch.arange(3, 20), 20, Extra(norms=True)) as traces:
        model(torch.arange(40, 60)[None], use_cache=False)
    assert sum(projected) == 17 * TOP_K * len(traces)
    assert all(trace.output_norms is not None and trace.output_norms.isfinite().all() for trace in traces)


@dataclass(frozen=True, eq=False)
class Shuffled(FusedLayer):
    """Matches the activations it observes to the wrong tokens."""

    def flight_order(self, indices: torch.Tensor, pieces: int) -> torch.Tensor | None:
        order = super().flight_order(indices, pieces)
        return None if order is None else order.roll(1)


def test_observed_rows_that_are_not_the_routed_rows_fail_loudly() -> None:
    model = built("olmoe", "grouped_mm")
    anatomy = adapt(model)
    true = anatomy.layers[1]
    wrong = Shuffled(true.label, true.name, true.experts, true.router, true.block, true.top_k)
    anatomy = replace(anatomy, layers=(anatomy.layers[0], wrong, anatomy.layers[2]))
    with pytest.raises(AdapterLies, match="observed rows differ from routed rows"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts("words"), ("outputs",))
    assert hooks_of(model) == 0


def test_margins_are_of_what_the_router_ranks(family: str) -> None:
    model = built(family)
    (captured,) = tiny_moe.run(model, adapt(model), tiny_moe.prompts(*TEXTS), ("layers",))
    layer = captured.layers[0]
    if family in ("lab_soft", "lab_expert_choice"):  # every expert has a slot: nothing is ranked for a token
        assert layer.margins.isnan().all()
        return
    assert (layer.margins >= 0).all()
    if family == "lab_loss_free":
        router = model.model.layers[0].mlp.gate
        ranked = (layer.logits.softmax(-1) + router.e_score_correction_bias).topk(TOP_K + 1).values
        torch.testing.assert_close(layer.margins, ranked[:, -2] - ranked[:, -1])


def test_only_what_is_needed_is_given() -> None:
    model = built("olmoe")
    anatomy, asked = adapt(model), tiny_moe.prompts("words")
    (routes,) = tiny_moe.run(model, anatomy, asked, ("routes",))
    (layers,) = tiny_moe.run(model, anatomy, asked, ("layers",))
    assert routes.layers == () and layers.route is None
    assert all(isinstance(batch, LayerBatch) and batch.output_norms.isnan().all() for batch in layers.layers)
    with pytest.raises(UnknownName, match="layers, outputs, routes"):
        tiny_moe.run(model, anatomy, asked, ("gradients",))


class Broken(RuntimeError):
    """An error of the model's own."""


def test_hooks_are_gone_after_an_error_in_the_middle_of_a_pass() -> None:
    model = built("olmoe")
    anatomy = adapt(model)
    tiny_moe.run(model, anatomy, tiny_moe.prompts("verified"))
    attention, forward = model.model.layers[1].self_attn, model.model.layers[1].self_attn.forward

    def fail(*args: Any, **kwargs: Any) -> None:
        raise Broken

    attention.forward = fail
    with pytest.raises(Broken):
        tiny_moe.run(model, anatomy, tiny_moe.prompts("words"), ("outputs",))
    assert hooks_of(model) == 0 and not _get_current_function_mode_stack()
    attention.forward = forward
    assert len(tiny_moe.run(model, anatomy, tiny_moe.prompts("words"))) == 1


def test_hooks_return_nothing_and_live_within_one_pass_only() -> None:
    model = built("olmoe")
    asked = tiny_moe.prompts(*TEXTS)
    options = CaptureOptions(batch_tokens=1)
    passes: Iterator[Captured] = capture(
        model, adapt(model), tiny_moe.tokenizer(), asked, options, frozenset({"routes"})
    )
    for _ in passes:
        assert hooks_of(model) == 0


def test_a_layer_that_runs_twice_or_not_at_all_is_no_answer() -> None:
    model = built("olmoe")
    anatomy = adapt(model)
    with torch.no_grad(), watch(anatomy, torch.arange(5), 5), pytest.raises(AdapterLies, match="ran twice"):
        for _ in range(2):
            model(torch.arange(5)[None], use_cache=False)
    model.model.layers[1].mlp.forward = lambda hidden: hidden
    with pytest.raises(AdapterLies, match=r"layers\.1\.mlp\.experts did not run"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts("words"))
    assert verified(anatomy) is None


@pytest.mark.parametrize("shared", [True, False])
def test_concurrent_captures_do_not_mix(shared: bool) -> None:
    models = [built("olmoe")] * 2 if shared else [built("olmoe"), built("lab_kmeans")]
    anatomies = [adapt(models[0])] * 2 if shared else [adapt(model) for model in models]
    asked = [tiny_moe.prompts(*(text + mark for text in TEXTS)) for mark in ("!", " and so on")]
    expected = [by_prompt(tiny_moe.run(*pair, batch_tokens=1)) for pair in zip(models, anatomies, asked, strict=True)]
    found: list[list[dict[str, Any]]] = [[], []]
    together = threading.Barrier(2)

    def work(n: int) -> None:
        together.wait()
        for _ in range(3):
            found[n].append(by_prompt(tiny_moe.run(models[n], anatomies[n], asked[n], batch_tokens=1)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(2):
        assert len(found[n]) == 3
        for each in found[n]:
            assert all(torch.equal(each[p]["indices"], expected[n][p]["indices"]) for p in expected[n])
    assert all(hooks_of(model) == 0 for model in models)


def test_a_foreign_pass_through_a_watched_model_leaves_no_trace() -> None:
    model = built("olmoe")
    other = threading.Thread(target=lambda: model(torch.arange(9)[None], use_cache=False))
    with watch(adapt(model), torch.arange(5), 5) as traces:
        other.start()
        other.join()
    assert all(trace.indices is None and trace.router_input is None for trace in traces)


def test_the_first_capture_verifies_and_says_how_well() -> None:
    model = built("olmoe")
    anatomy = adapt(model)
    assert verified(anatomy) is None
    tiny_moe.run(model, anatomy, tiny_moe.prompts("hi"))
    found = verified(anatomy)
    assert isinstance(found, Verified) and found.tokens == 8 and max(found.output_error) < 1e-5


def test_a_model_in_training_is_refused() -> None:
    model = built("olmoe").train()
    with pytest.raises(GeometryError, match="training mode"):
        tiny_moe.run(model, adapt(model), tiny_moe.prompts("words"))
