"""How a paged checkpoint is held: precision, attention and packed weights as a resident one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.checkpoints.loading import held_as
from backend.checkpoints.variants import variant
from backend.errors import Refusal
from tests.backend import tiny_olmoe
from tests.backend.paged_files import Machine, read, saved, task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_packed_weights_are_unpacked_as_transformers_does(tmp_path: Path) -> None:
    checkpoint = in_eight_bits(tmp_path / "eight-bits")
    asked = task(checkpoint, ("prompt_counts", "router_sums", "expert_rows"))
    expected = Machine(tmp_path / "whole", "never").run(asked)
    assert Machine(tmp_path / "paged", "always").run(asked) == expected


def test_packed_weights_are_told_to_unpack_on_every_device(tmp_path: Path) -> None:
    """On a card that computes in 8 bits transformers would leave them packed."""
    held = held_as(in_eight_bits(tmp_path / "eight-bits"))
    assert held["quantization_config"].dequantize is True


@pytest.mark.parametrize("ways", ["bf16", "fp16+eager"])
def test_a_paged_variant_is_held_as_the_resident_one(ways: str, tmp_path: Path) -> None:
    checkpoint = saved("olmoe", tmp_path / "olmoe")
    asked = replace(task(checkpoint), checkpoint=variant(checkpoint, ways))
    whole, paged = Machine(tmp_path / "whole", "never"), Machine(tmp_path / "paged", "always")
    expected = whole.run(asked)
    assert paged.run(asked) == expected != whole.run(task(checkpoint))
    models = [each.residents.get(asked.checkpoint).model for each in (whole, paged)]
    assert {(m.dtype, m.config._attn_implementation) for m in models} == {
        (getattr(torch, asked.checkpoint.precision), "eager" if "eager" in ways else "sdpa")
    }


def test_a_paged_checkpoint_with_a_number_that_is_none_is_refused_by_file_and_tensor(tmp_path: Path) -> None:
    for name in ("model.layers.1.mlp.experts.2.down_proj.weight", "model.norm.weight"):
        folder = tiny_olmoe.save(tmp_path / name)
        tensors = load_file(folder / "model.safetensors")
        tensors[name].view(-1)[3] = torch.nan
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        said = rf"model.safetensors of .* holds 1 numbers that are NaN or infinite among the [\d,]+ of {name}"
        with pytest.raises(Refusal, match=said):
            Machine(tmp_path / "store", "always").run(task(read(folder), ("prompt_counts",)))


def test_a_paged_tensor_of_another_shape_is_refused_by_file_and_tensor(tmp_path: Path) -> None:
    folder = tiny_olmoe.save(tmp_path / "misshapen")
    tensors, name = load_file(folder / "model.safetensors"), "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Refusal, match=rf"model.safetensors of .* holds {name} with shape"):
        Machine(tmp_path / "store", "always").run(task(read(folder)))


def in_eight_bits(folder: Path) -> Any:
    """A qwen3_moe whose experts are fp8 with a scale for each block, as a hub has them."""
    saved("qwen3_moe", folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        scale = tensors[name].abs().max() / 448
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale.reshape(1, 1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    skipped = ["lm_head", "self_attn", "mlp.gate"]
    packed = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": skipped}
    config["quantization_config"] = packed
    (folder / "config.json").write_text(json.dumps(config))
    return read(folder)
