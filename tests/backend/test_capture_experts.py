"""What a capture gives of the experts themselves: pre-activations, slopes, gradients by the router's logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from analysis.errors import GeometryError
from analysis.expert import Expert
from analysis.slots import LayerBatch
from backend.adapters import AdapterLies, adapt
from backend.adapters.fused import FusedLayer
from backend.capture import backward
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow

TEXTS = ("for n in range(9):\n    print(n)", "A fact.", "2+2=4", "x")
EVERYTHING = ("routes", "gate", "outputs", "experts", "backward")


@pytest.fixture(params=sorted(tiny_moe.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def built(family: str, implementation: str = "eager") -> Any:
    return tiny_moe.build(tiny_moe.FAMILIES[family], implementation)


def captured(model: Any, *needs: str, texts: tuple[str, ...] = TEXTS, **options: Any) -> tuple[LayerBatch, ...]:
    (found,) = tiny_moe.run(model, adapt(model), tiny_moe.prompts(*texts), needs, **options)
    return found.layers


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_what_goes_into_the_gate_is_what_each_expert_makes_of_its_token(family: str, implementation: str) -> None:
    for batch in captured(built(family, implementation), "gate", "experts"):
        assert batch.experts is not None and batch.gate_in is not None and batch.up_in is not None
        assert batch.served.all()
        for index, expert in enumerate(batch.experts):
            token, slot = (batch.indices == index).nonzero(as_tuple=True)
            gate, up = expert.preactivations(batch.expert_input[token])
            torch.testing.assert_close(batch.gate_in[token, slot], gate, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(batch.up_in[token, slot], up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_the_gate_is_observed_and_not_computed_twice(monkeypatch: Any, implementation: str) -> None:
    model, computed = built("olmoe", implementation), []
    anatomy = adapt(model)
    tiny_moe.run(model, anatomy, tiny_moe.prompts("verified"))
    own = Expert.preactivations
    monkeypatch.setattr(Expert, "preactivations", lambda expert, x: computed.append(len(x)) or own(expert, x))
    tiny_moe.run(model, anatomy, tiny_moe.prompts(*TEXTS), ("gate", "outputs"))
    # Only the rows that prove the observation: 8 a layer, where the pass has 104 selections.
    assert sum(computed) == 8 * 3


@dataclass(frozen=True, eq=False)
class Shuffled(FusedLayer):
    """Matches what it observes to the wrong tokens."""

    def flight_order(self, indices: torch.Tensor, pieces: int) -> torch.Tensor | None:
        order = super().flight_order(indices, pieces)
        return None if order is None else order.roll(1)


def test_observed_gates_of_other_tokens_fail_loudly() -> None:
    model = built("olmoe", "grouped_mm")
    anatomy = adapt(model)
    true = anatomy.layers[1]
    wrong = Shuffled(true.label, true.name, true.experts, true.router, true.block, true.top_k)
    anatomy = type(anatomy)((anatomy.layers[0], wrong, anatomy.layers[2]), anatomy.shape, anatomy.model_type)
    with pytest.raises(AdapterLies, match="observed before the gate"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts("words"), ("gate",))


def test_norms_from_observed_gates_are_those_of_recomputed_outputs(family: str) -> None:
    with_gate = captured(built(family, "grouped_mm"), "gate", "outputs")
    without = captured(built(family, "grouped_mm"), "outputs")
    for one, other in zip(with_gate, without, strict=True):
        torch.testing.assert_close(one.output_norms, other.output_norms, rtol=1e-5, atol=1e-6)


def summed_output(layer: FusedLayer, index: int, x: torch.Tensor) -> torch.Tensor:
    return layer.alone(index, x).sum(0)


def test_the_mean_of_the_slopes_is_the_jacobian_of_the_module(family: str) -> None:
    model = built(family).double()
    for layer, batch in zip(adapt(model).layers, captured(model, "gate", "experts"), strict=True):
        assert batch.experts is not None and batch.gate_in is not None and batch.up_in is not None
        index = int(batch.indices[0, 0])
        expert, (token, slot) = batch.experts[index], (batch.indices == index).nonzero(as_tuple=True)
        x = batch.expert_input[token]
        summed = partial(summed_output, layer, index)
        truth = torch.autograd.functional.jacobian(summed, x).permute(1, 0, 2)  # rows do not touch each other
        for gate, up in (expert.slopes_each(x), expert.slopes_at(batch.gate_in[token, slot], batch.up_in[token, slot])):
            assert gate is not None and expert.gate is not None
            inner = up.mean(0)[:, None] * expert.up + gate.mean(0)[:, None] * expert.gate
            torch.testing.assert_close(expert.down @ inner, truth.mean(0), rtol=1e-10, atol=1e-10)
        along = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(
            expert.jvp(x, along), torch.einsum("noi,ni->no", truth, along), rtol=1e-10, atol=1e-10
        )


def test_the_shared_expert_is_the_models_own() -> None:
    for family in ("qwen2_moe", "deepseek_v3"):
        model = built(family)
        block = model.model.layers[1].mlp
        module = getattr(block, "shared_expert", None) or block.shared_experts
        batch = captured(model, "experts")[0]
        assert batch.shared is not None
        torch.testing.assert_close(batch.shared(batch.expert_input), module(batch.expert_input).detach())
    assert captured(built("olmoe"), "experts")[0].shared is None


@pytest.mark.parametrize("family", ["olmoe", "lab_softmax_aux", "lab_loss_free", "lab_soft", "lab_kmeans"])
def test_the_task_gradient_is_that_of_what_is_added_to_the_logits(family: str) -> None:
    """By hand: a zero is added to the router's own product, prompt by prompt, and differentiated."""
    model = built(family).double()
    batches = captured(model, "backward")
    texts = dict(zip("abcd", TEXTS, strict=True))
    for layer, batch in enumerate(batches):
        assert batch.task_gradient is not None
        scale = float(batch.task_gradient.abs().max())
        for prompt, name in enumerate(batch.prompts.ids):
            by_hand = gradient_by_hand(model, model.model.layers[layer].mlp.gate, texts[name])
            found = batch.task_gradient[batch.keys.prompt == prompt].double()
            assert found.shape == by_hand.shape and float((found - by_hand).abs().max()) < 1e-6 * scale


def gradient_by_hand(model: Any, router: Any, text: str) -> torch.Tensor:
    ids = torch.tensor([list(tiny_moe.tokenizer()(text)["input_ids"])])
    added = torch.zeros(ids.shape[1], router.weight.shape[0], dtype=torch.float64, requires_grad=True)
    linear, inside = F.linear, []

    def moved(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        # K-Means divides its cosines by a temperature, and the quotients are its logits.
        return linear(x, weight, *rest) + (added * getattr(router, "temperature", 1.0) if inside else 0)

    hooks = [
        router.register_forward_pre_hook(lambda *_: inside.append(True)),
        router.register_forward_hook(lambda *_: inside.clear()),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", moved)
        logits = model(ids, use_cache=False).logits[0, :-1]
    for hook in hooks:
        hook.remove()
    if not len(logits):
        return torch.zeros_like(added)
    loss = -logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).sum()
    return torch.autograd.grad(loss, added)[0]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_a_pass_with_gradients_routes_alike_and_leaves_nothing_behind(family: str, implementation: str) -> None:
    model = built(family, implementation)
    before = {name: (p.requires_grad, p.detach().clone()) for name, p in model.named_parameters()}
    plain = captured(model, "layers")
    found = captured(model, *EVERYTHING)
    for one, other in zip(plain, found, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert other.task_gradient is not None and other.task_gradient.isfinite().all()
        for name in ("logits", "weights", "task_gradient", "gate_in", "up_in", "output_norms", "expert_input"):
            value = getattr(other, name)
            assert value is not None and not value.requires_grad and value.grad_fn is None
    for name, parameter in model.named_parameters():
        assert parameter.grad is None and parameter.requires_grad == before[name][0]
        assert torch.equal(parameter, before[name][1])
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_half_precision_gives_all_of_it_within_its_rounding(family: str, implementation: str) -> None:
    half = captured(built(family, implementation).bfloat16(), *EVERYTHING)
    for batch in half:
        assert batch.experts is not None and batch.up_in is not None and batch.task_gradient is not None
        assert batch.up_in.dtype == torch.bfloat16 and batch.experts[0].up.dtype == torch.bfloat16
        assert batch.task_gradient.dtype == torch.float32 and batch.task_gradient.isfinite().all()
        token, slot = (batch.indices == batch.indices[0, 0]).nonzero(as_tuple=True)
        up = batch.experts[int(batch.indices[0, 0])].preactivations(batch.expert_input[token])[1]
        torch.testing.assert_close(batch.up_in[token, slot], up, rtol=2e-2, atol=2e-2)


def test_a_token_without_a_next_has_no_gradient_and_the_rest_have_some() -> None:
    for batch in captured(built("olmoe"), "backward"):
        assert batch.task_gradient is not None
        last = batch.keys.next == -1
        assert (batch.task_gradient[last] == 0).all() and (batch.task_gradient[~last] != 0).any(-1).all()


def test_prompts_of_one_token_have_no_loss_and_a_gradient_of_zero() -> None:
    for batch in captured(built("olmoe"), "backward", texts=("x", "y")):
        assert batch.task_gradient is not None and (batch.task_gradient == 0).all()


def test_gradients_add_to_zero_where_only_differences_of_logits_count() -> None:
    for batch in captured(built("olmoe").double(), "backward"):
        assert batch.task_gradient is not None
        assert float(batch.task_gradient.sum(-1).abs().max()) < 1e-6 * float(batch.task_gradient.abs().max())


def test_a_router_that_hides_its_logits_is_refused_with_what_asked_for_them() -> None:
    model = built("olmoe")
    anatomy = adapt(model)
    tiny_moe.run(model, anatomy, tiny_moe.prompts("verified"))
    router = model.model.layers[1].mlp.gate
    forward = router.forward
    router.forward = lambda hidden: (None, *forward(hidden)[1:])
    with pytest.raises(GeometryError, match=r"layers\.1.*hides its logits.*`backward`"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts("words"), ("backward",))
    router.forward = lambda hidden: (forward(hidden)[0].clone(), *forward(hidden)[1:])
    with pytest.raises(GeometryError, match=r"does not depend on the logits.*`backward`"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts("words"), ("backward",))
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == 0


def test_the_loss_is_that_of_each_prompt_alone() -> None:
    logits, ids = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0)), torch.arange(8).view(2, 4)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    expected = -sum(float(logits[b, t].log_softmax(-1)[ids[b, t + 1]]) for b, t in ((0, 0), (0, 1), (0, 2), (1, 0)))
    assert float(backward.next_token_loss(logits, ids, mask)) == pytest.approx(expected, rel=1e-6)


def test_batches_are_smaller_where_more_is_kept(monkeypatch: Any) -> None:
    model = built("olmoe")
    anatomy = adapt(model)
    asked = tiny_moe.prompts(*("0123456789" for _ in range(8)))
    tokens = lambda *needs: [len(c.layers[0].keys) for c in tiny_moe.run(model, anatomy, asked, needs, batch_tokens=80)]  # noqa: E731
    assert tokens("layers") == [80]
    assert tokens("backward") == [20] * 4
    # 3 layers x 2 slots x 2 x 24 numbers of 4 bytes
    monkeypatch.setattr("backend.capture.GATE_BYTES", 3 * TOKEN_BYTES * 10)
    assert tokens("gate") == [30, 30, 20]


TOKEN_BYTES = 3 * 2 * 2 * 24 * 4
