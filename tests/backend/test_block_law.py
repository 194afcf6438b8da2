"""What the adapter says of a model reproduces what the model does, in every family; an adapter that lies is caught."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from analysis.errors import GeometryError, NoExperts, UnknownName
from analysis.expert import Expert
from analysis.slots import Layered
from backend.adapters import AdapterLies, Anatomy, Unsupported, adapt
from backend.adapters.block import TOLERANCE, tally
from backend.adapters.fused import FusedLayer
from backend.adapters.law import verify
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow

TEXT = torch.arange(40, 72)


@pytest.fixture(params=sorted(tiny_moe.FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_the_routed_output_follows_from_what_the_adapter_reads(family: str, implementation: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family], implementation)
    found = verify(model, adapt(model), TEXT)
    assert max(found.output_error) < TOLERANCE[torch.float32]
    assert max(found.jacobian_error) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_keep_the_law_within_their_rounding(family: str, dtype: torch.dtype) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family], "eager").to(dtype)
    found = verify(model, adapt(model), TEXT)
    assert max(found.output_error) < 1e-2
    assert max(found.jacobian_error) < 5e-2


def test_a_soft_router_over_many_experts_may_round_more_in_half_precision() -> None:
    model = tiny_moe.build(lambda: tiny_moe.lab("soft", num_experts=64, num_experts_per_tok=64)).bfloat16()
    assert max(verify(model, adapt(model), TEXT[:8]).output_error) < 2e-2


def test_the_closed_form_is_the_jacobian_of_the_experts_module_itself(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family]).double()
    layer = adapt(model).layers[-1]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, tiny_moe.MODEL, dtype=torch.float64, generator=generator)
    alone = torch.ones(1, 1, dtype=torch.float64)
    for index in (0, tiny_moe.EXPERTS - 1):
        module = partial(layer.experts, top_k_index=torch.full((1, 1), index), top_k_weights=alone)
        if family == "gpt_oss":
            module = partial(layer.experts, router_indices=torch.full((1, 1), index), routing_weights=alone)
        jacobian = torch.stack([torch.autograd.functional.jacobian(module, row[None])[0, :, 0] for row in x])
        torch.testing.assert_close(layer.expert(index).mean_jacobian(x), jacobian.mean(0), rtol=1e-10, atol=1e-12)


def test_sizes_and_labels_are_the_models_own(family: str) -> None:
    shape = adapt(tiny_moe.build(tiny_moe.FAMILIES[family])).shape
    dense_first = family in ("qwen2_moe", "deepseek_v3")
    assert shape.layers == (("1", "2") if dense_first else ("0", "1", "2"))
    assert (shape.experts, shape.model, shape.hidden) == (tiny_moe.EXPERTS, tiny_moe.MODEL, tiny_moe.HIDDEN)
    assert shape.soft == (family in ("lab_soft", "lab_expert_choice"))


def test_weight_slots_have_their_declared_axes(family: str) -> None:
    anatomy = adapt(tiny_moe.build(tiny_moe.FAMILIES[family]))
    layers, (e, d, h) = len(anatomy.layers), (tiny_moe.EXPERTS, tiny_moe.MODEL, tiny_moe.HIDDEN)
    sizes = {"router_weight": (e, d), "router_bias": (e,), "gate_weight": (e, h, d), "up_weight": (e, h, d)}
    for name, size in (sizes | {"down_weight": (e, d, h)}).items():
        assert anatomy.weights(name).shape == (layers, *size)
        torch.testing.assert_close(anatomy.weights(name, layer=0), anatomy.weights(name)[0], equal_nan=True)


def test_the_experts_matrices_come_one_layer_at_a_time_and_are_the_stacked_ones(family: str) -> None:
    anatomy = adapt(tiny_moe.build(tiny_moe.FAMILIES[family]))
    for name in ("gate_weight", "up_weight", "down_weight"):
        slot, stacked = anatomy.slot(name), anatomy.weights(name)
        assert not isinstance(slot, Tensor) and isinstance(slot, Layered) and len(slot) == len(stacked)
        for layer in range(len(slot)):
            assert torch.equal(slot[layer], stacked[layer]) and not slot[layer].requires_grad
        with pytest.raises(IndexError):
            slot[len(slot)]
    assert torch.equal(torch.as_tensor(anatomy.slot("router_weight")), anatomy.weights("router_weight"))


def test_a_router_bias_is_read_where_there_is_one_and_nan_where_there_is_none() -> None:
    free = tiny_moe.build(tiny_moe.FAMILIES["lab_loss_free"])
    assert torch.equal(adapt(free).weights("router_bias")[1], free.model.layers[1].mlp.gate.e_score_correction_bias)
    oss = tiny_moe.build(tiny_moe.gpt_oss)
    assert torch.equal(adapt(oss).weights("router_bias")[0], oss.model.layers[0].mlp.router.bias)
    assert adapt(tiny_moe.build(tiny_moe.olmoe)).weights("router_bias").isnan().all()


def test_an_unknown_weight_slot_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="router_weight, router_bias"):
        adapt(tiny_moe.build(tiny_moe.olmoe)).weights("router_wieght")


def test_a_dense_model_is_refused_by_its_type() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    with pytest.raises(NoExperts, match="llama is a dense model"):
        adapt(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)))
    dense = tiny_moe.lab("dense", num_experts=0, num_experts_per_tok=0)
    with pytest.raises(NoExperts, match="moe_geometry_lab is a dense model"):
        adapt(dense)


def test_experts_in_an_unread_layout_are_refused_and_not_called_dense() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    for layer in model.model.layers:
        layer.mlp.experts = torch.nn.Identity()
    with pytest.raises(Unsupported, match="olmoe names 8 experts"):
        adapt(model)


def test_packed_experts_are_refused_with_the_way_out() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    for layer in model.model.layers:
        layer.mlp.experts.down_proj = torch.nn.Parameter(layer.mlp.experts.down_proj.to(torch.float8_e4m3fn), False)
    with pytest.raises(Unsupported, match="dequantize=True"):
        adapt(model)


def test_layers_of_different_sizes_are_refused() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    model.model.layers[1].mlp.gate.top_k = 3
    with pytest.raises(Unsupported, match="top 3"):
        adapt(model)


@dataclass(frozen=True, eq=False)
class Permuted(FusedLayer):
    """Says that the experts lie in another order than they do."""

    def expert(self, index: int) -> Expert:
        return super().expert((index + 1) % self.size()[0])


@dataclass(frozen=True, eq=False)
class Ungated(FusedLayer):
    """Gets the output right and the activation's slopes wrong: the gate's way to the output is cut."""

    def phi(self, gate: Tensor | None, up: Tensor) -> Tensor:
        return super().phi(None if gate is None else gate.detach() + 0 * gate, up)


def lying(anatomy: Anatomy, kind: type[FusedLayer], at: int) -> Anatomy:
    layers = list(anatomy.layers)
    true = layers[at]
    layers[at] = kind(true.label, true.name, true.experts, true.router, true.block, true.top_k)
    return replace(anatomy, layers=tuple(layers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_permuted_expert_weights_in_one_layer_are_caught(family: str, dtype: torch.dtype) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family]).to(dtype)
    with pytest.raises(AdapterLies, match="recomputed"):
        verify(model, lying(adapt(model), Permuted, -1), TEXT[:8])


def test_an_activation_that_lies_is_caught_by_the_jacobian() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    with pytest.raises(AdapterLies, match="Jacobian"):
        verify(model, lying(adapt(model), Ungated, 0), TEXT[:8])


def test_no_figure_is_drawn_from_a_lying_adapter() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    with pytest.raises(AdapterLies):
        tiny_moe.run(model, lying(adapt(model), Permuted, 1), tiny_moe.prompts("hello"))


def test_a_wrong_k_fails_loudly() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    anatomy = adapt(model)
    wrong = replace(anatomy, layers=tuple(replace(layer, top_k=3) for layer in anatomy.layers))  # type: ignore[type-var]
    with pytest.raises(AdapterLies, match="top 3 was expected"):
        verify(model, wrong, TEXT[:8])


def test_a_selection_that_no_expert_can_serve_fails_loudly() -> None:
    layer = adapt(tiny_moe.build(tiny_moe.olmoe)).layers[0]
    indices = torch.tensor([[0, 1], [7, 8]])
    with pytest.raises(AdapterLies, match="indices run from 0 to 8 for 8 experts"):
        tally(layer, indices, torch.ones(2, 2))


def test_experts_without_a_gate_have_no_gate_slot() -> None:
    layer = adapt(tiny_moe.build(tiny_moe.olmoe)).layers[0]
    bare = torch.nn.Module()
    bare.up_proj, bare.down_proj = (torch.nn.Parameter(torch.zeros(8, a, b)) for a, b in ((24, 32), (32, 24)))
    with pytest.raises(GeometryError, match="no gate"):
        replace(layer, experts=bare).weights("gate_weight")  # type: ignore[type-var]
