"""What no figure would be true of is refused before anything runs, in a sentence that says why and what would help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers.integrations.mxfp4 import Mxfp4GptOssExperts
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from analysis.errors import NoExperts
from backend.adapters import Unsupported, adapt, refused
from backend.checkpoints import inspect
from backend.checkpoints.architectures import architecture
from backend.errors import Refusal
from backend.settings import Settings
from tests.backend import tiny_moe, zoo

WHY = {
    "diffusion_gemma": "denoising a canvas beside the prompt",
    "doge": "doge has no rows of experts to measure",
    "inkling2_loop": "runs the same layers several times in one pass",
    "inkling2_loop_text": "runs the same layers several times in one pass",
    "muse_spark": "normalises each expert's output",
    "muse_spark_text": "normalises each expert's output",
    "nllb-moe": "nllb-moe is broken in transformers 5.24",
}


WITH_EXPERTS = {"doge": {"is_moe": True}, "diffusion_gemma": {"text_config": {"num_experts": 8, "top_k_experts": 2}}}


@pytest.mark.parametrize("kind", zoo.BUILT_AND_REFUSED)
def test_a_type_is_refused_before_it_runs(kind: str) -> None:
    with pytest.raises(Unsupported, match=WHY[kind]):
        adapt(zoo.build(kind))


def test_every_refused_type_has_its_reason_tested() -> None:
    assert not set(refused.TYPES) - set(WHY)


@pytest.mark.parametrize("kind", sorted(WHY))
def test_a_type_is_refused_by_its_headers_alone(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    CONFIG_MAPPING[kind](**WITH_EXPERTS.get(kind, {})).save_pretrained(folder)
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(Refusal, match=WHY[kind]) as told:
        inspect(str(folder), Settings(extra_roots=(tmp_path,)))
    row = architecture(kind, f"{kind}_text")
    assert row is not None and str(told.value) == row.remarks


def test_nllb_moe_still_runs_two_experts_alone() -> None:
    """The reason it is refused for: once this fails, it can be read."""
    from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeExperts

    config = zoo.config_of("nllb-moe")
    torch.manual_seed(0)
    experts, ran = NllbMoeExperts(config, 8).eval(), set()
    for name, expert in experts.items():
        expert.register_forward_hook(lambda _, args, out, name=name: ran.add(name))
    chosen = torch.arange(config.num_experts)
    mask = torch.nn.functional.one_hot(chosen, config.num_experts)
    experts(torch.randn(len(chosen), config.d_model), mask, torch.ones(len(chosen), config.num_experts))
    assert config.num_experts > 2 and ran == {"expert_0", "expert_1"}


def test_a_dense_doge_is_dense() -> None:
    config = zoo.config_of("doge")
    config.is_moe = False
    with pytest.raises(NoExperts, match="doge is a dense model"):
        adapt(zoo.class_of(config)(config))


def test_expert_parallelism_is_refused_with_the_way_out() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    model.model.layers[1].mlp.experts._is_expert_parallel = True
    with pytest.raises(Unsupported, match=r"layers\.1\.mlp\.experts .* holds only its share .*load without expert"):
        adapt(model)


def test_packed_mxfp4_is_refused_with_the_way_out() -> None:
    model = tiny_moe.build(tiny_moe.gpt_oss)
    for layer in model.model.layers:
        layer.mlp.experts = Mxfp4GptOssExperts(model.config)
    with pytest.raises(Unsupported, match=r"packed as mxfp4: load it .*dequantize=True"):
        adapt(model)


def test_kernels_that_pass_by_the_router_are_refused_with_the_way_out() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    model._use_kernels = True
    with pytest.raises(Unsupported, match=r"kernels that pass by its router.*use_kernels=False"):
        adapt(model)
