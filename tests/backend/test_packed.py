"""Weights in 8 and 4 bits: unpacked to the numbers that their scales say, asked about, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from backend.checkpoints import inspect, load
from backend.errors import Refusal
from backend.question import ask
from backend.services import open_services
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.inline import InlineRunner

pytestmark = pytest.mark.slow

WEIGHTS, BLOCK = "model.safetensors", 8
SIZES = {"vocab_size": 257, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The numbers of FP4 E2M1: OCP Microscaling Formats 1.0, table 5."""


def write(folder: Path, tensors: dict[str, torch.Tensor], quantization: dict[str, object]) -> None:
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": quantization}))
    tiny_olmoe.byte_tokenizer().save_pretrained(folder)


def eight_bits(folder: Path) -> dict[str, torch.Tensor]:
    """A Qwen3-MoE whose matrices are FP8 E4M3 with a scale a block; returns what they stand for, by their own names."""
    config = Qwen3MoeConfig(
        **SIZES, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, head_dim=8, num_experts=4,
        num_experts_per_tok=2, pad_token_id=256, eos_token_id=256,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).bfloat16().save_pretrained(folder)
    packed, meant = {}, {}
    for name, matrix in load_file(folder / WEIGHTS).items():
        packed[name] = matrix
        if not name.endswith("_proj.weight"):
            continue
        rows, columns = (size // BLOCK for size in matrix.shape)
        blocks = matrix.float().reshape(rows, BLOCK, columns, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        packed[name] = (blocks / scale[:, None, :, None]).reshape(matrix.shape).to(torch.float8_e4m3fn)
        packed[f"{name}_scale_inv"] = scale
        again = packed[name].float().reshape(blocks.shape) * scale[:, None, :, None]
        meant[name] = again.reshape(matrix.shape).bfloat16()
    plain = ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(2))]
    about = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    write(folder, packed, about | {"modules_to_not_convert": plain})
    return meant


def four_bits(folder: Path) -> dict[str, torch.Tensor]:
    """A gpt-oss whose experts are two numbers a byte with a power of two for every 32."""
    config = GptOssConfig(
        **SIZES, hidden_size=32, intermediate_size=32, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        pad_token_id=256, eos_token_id=256,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    GptOssForCausalLM(config).bfloat16().save_pretrained(folder)
    packed, meant = {}, {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = tensor
            continue
        experts, inner, outer = tensor.shape
        bytes_ = torch.randint(0, 256, (experts, outer, inner // 32, 16), dtype=torch.uint8, generator=draw)
        scales = torch.randint(118, 124, (experts, outer, inner // 32), dtype=torch.uint8, generator=draw)
        packed |= {f"{name}_blocks": bytes_, f"{name}_scales": scales}
        pairs = torch.stack([FOUR_BITS[(bytes_ & 15).long()], FOUR_BITS[(bytes_ >> 4).long()]], -1)
        numbers = pairs.flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
        meant[name] = numbers.reshape(experts, outer, inner).transpose(1, 2).bfloat16()
    write(folder, packed, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router", "lm_head"]})
    return meant


def ask_it(settings: Settings) -> None:
    """The first run of a checkpoint holds what its adapter reads to the model's own output."""
    with open_services(settings, InlineRunner(settings.store)) as services:
        found = services.checkpoints.find("packed")
        load_of = services.answering.answer(ask("expert_load", [found], tiny_olmoe.prompts(4))).result
        assert load_of.values.shape == (2, 4) and abs(load_of.values.mean() - 1) < 1e-9
        alike = services.answering.answer(ask("weight_similarity", [found], None)).result
        assert (alike.values[0, 0, 1:] < 1).all()


def test_eight_bits_are_unpacked_to_what_their_scales_say(settings: Settings, one_thread: None) -> None:
    meant = eight_bits(settings.extra_roots[0] / "packed")
    found = inspect("packed", settings)
    assert (found.dtype, found.precision, found.memory_bytes) == ("fp8", "bfloat16", 2 * found.parameters)
    model = load(found, "cpu")
    assert sum(p.numel() for p in model.parameters()) == found.parameters
    state = model.state_dict()
    name = "model.layers.1.mlp.experts.{}.{}_proj.weight"
    for expert in range(4):
        stacked = torch.cat([meant[name.format(expert, part)] for part in ("gate", "up")])
        assert torch.equal(state["model.layers.1.mlp.experts.gate_up_proj"][expert], stacked)
    assert torch.equal(state["model.layers.0.self_attn.q_proj.weight"], meant["model.layers.0.self_attn.q_proj.weight"])
    ask_it(settings)


def test_four_bits_are_unpacked_to_what_their_scales_say(settings: Settings, one_thread: None) -> None:
    meant = four_bits(settings.extra_roots[0] / "packed")
    found = inspect("packed", settings)
    assert (found.dtype, found.precision) == ("mxfp4", "bfloat16")
    model = load(found, "cpu")
    assert sum(p.numel() for p in model.parameters()) == found.parameters
    for name, numbers in meant.items():
        assert torch.equal(model.state_dict()[name], numbers)
    ask_it(settings)


def test_what_is_packed_otherwise_is_refused_by_name(settings: Settings, folder: Path) -> None:
    for said, named in (({"quant_method": "gptq", "bits": 4}, "gptq"), ({"bits": 4}, "does not name")):
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | {"quantization_config": said}))
        with pytest.raises(Refusal, match=rf"packed by .*{named}.*only fp8 and mxfp4 are read"):
            inspect(str(folder), settings)
