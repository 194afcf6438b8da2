"""Checkpoints on disk as others save them: told by their headers alone, and per-expert names are fused on loading."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from transformers import PreTrainedModel

from backend.adapters import adapt
from backend.adapters.law import verify
from backend.checkpoints import inspect, load
from backend.checkpoints.headers import read_headers
from backend.settings import Settings
from tests.backend import zoo
from tests.backend.architectures import TEXT, measured

pytestmark = pytest.mark.slow

KINDS = (
    "afmoe dbrx deepseek_v2 deepseek_v3 ernie4_5_moe flex_olmo gemma4_text glm4_moe gpt_oss granitemoe jamba jetmoe "
    "llama4_text longcat_flash minimax_m2 mixtral nemotron_h olmoe qwen2_moe qwen3_moe switch_transformers zaya"
).split()
"""The 22 families whose config and tensor names differ most."""
PER_EXPERT = {
    "mixtral": r"layers\.\d+\.block_sparse_moe\.experts\.\d\.w[123]\.weight",
    "qwen2_moe": r"layers\.\d+\.mlp\.experts\.\d\.(gate|up|down)_proj\.weight",
    "qwen3_moe": r"layers\.\d+\.mlp\.experts\.\d\.(gate|up|down)_proj\.weight",
    "deepseek_v3": r"layers\.\d+\.mlp\.experts\.\d\.(gate|up|down)_proj\.weight",
    "olmoe": r"layers\.\d+\.mlp\.experts\.\d\.(gate|up|down)_proj\.weight",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


def saved(kind: str, root: Path) -> Path:
    """The whole tiny model, both stacks of it where there are two."""
    folder = root / kind
    if not folder.exists():
        zoo.whole(kind, head=True).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_headers_alone_say_what_the_adapter_finds(kind: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, loads = saved(kind, root), []
    for owner, name in (
        (PreTrainedModel, "__init__"),
        (PreTrainedModel, "from_pretrained"),
        (safetensors, "safe_open"),
        (safetensors.torch, "load_file"),
        (torch, "load"),
    ):
        monkeypatch.setattr(owner, name, lambda *args, name=name, **kwargs: loads.append(name))
    found = inspect(str(folder), Settings(extra_roots=(root,)))
    monkeypatch.undo()
    row, shape = measured(kind)
    assert not loads and shape is not None
    assert (found.adapter, found.architecture, found.dense) == (row.adapter, kind, False)
    sizes = (shape.experts, shape.top_k, shape.model, shape.hidden)
    assert (found.experts, found.top_k, found.model, found.hidden) == sizes
    assert found.moe_layers == len(shape.layers)
    assert found.layers == (4 if kind == "longcat_flash" else 2)  # whose config counts each layer's two attentions
    assert found.parameters == sum(tensor.count for tensor in read_headers(folder).values()) > 0


@pytest.mark.parametrize("kind", sorted(PER_EXPERT))
def test_experts_under_names_of_their_own_are_read_as_the_fused_ones_they_were(kind: str, root: Path) -> None:
    model: Any = zoo.whole(kind, head=True)
    folder = saved(kind, root)
    names = [name for name in read_headers(folder) if ".experts." in name and "shared" not in name]
    anatomy = adapt(model)
    assert len(names) == len(anatomy.layers) * zoo.EXPERTS * 3
    assert all(re.search(f"{PER_EXPERT[kind]}$", name) for name in names)
    loaded = load(inspect(str(folder), Settings(extra_roots=(root,))), "cpu")
    again = adapt(loaded)
    assert again.adapter == "fused" and again.shape == anatomy.shape
    for name in ("router_weight", "gate_weight", "up_weight", "down_weight"):
        assert torch.equal(anatomy.weights(name), again.weights(name))
    assert max(verify(loaded, again, TEXT).output_error) < 1e-5


def test_a_prompt_goes_through_the_encoder_of_a_model_that_has_two_stacks(root: Path) -> None:
    loaded = load(inspect(str(saved("switch_transformers", root)), Settings(extra_roots=(root,))), "cpu")
    anatomy = adapt(loaded)
    assert anatomy.adapter == "switch" and anatomy.shape.layers == ("1",)
    assert max(verify(loaded, anatomy, TEXT).output_error) < 1e-5
