"""Every MoE type of the pinned transformers on a tiny random model: the laws, and the table that says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend.adapters import adapt
from backend.adapters.law import verify
from backend.checkpoints.architectures import architecture, architectures
from tests.backend import tiny_moe, zoo
from tests.backend.architectures import FILE, MARKS, README, TEXT, as_json, as_markdown, marked, measured

BLOCK, JACOBIAN, JACOBIAN_IN_FLOAT32 = 1e-5, 1e-10, 1e-6
CASTS = {"beam", "inkling2_text", "openai_privacy_filter"}
"""Types that compute in float32 inside their experts, whatever the model's precision."""
OUTLIERS = {
    "dbrx": "dbrx",
    "inkling_text": "inkling",
    "jetmoe": "jetmoe",
    "llama4_text": "llama4",
    "longcat_flash": "longcat",
    "switch_transformers": "switch",
    "zaya": "zaya",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_type_does_what_the_table_says_of_it(kind: str) -> None:
    found, _ = measured(kind)
    written = architecture(kind)
    assert written is not None, f"{kind} is not in {FILE.name}: make architectures"
    same = {"block_error": None, "jacobian_error": None}
    assert replace(found, **same) == replace(written, **same)
    assert (found.block_error is None) == (written.block_error is None) == (not found.supported)
    if found.block_error is not None and found.jacobian_error is not None:
        assert written.block_error is not None and written.jacobian_error is not None
        assert found.block_error <= written.block_error <= BLOCK
        assert found.jacobian_error <= written.jacobian_error
        assert written.jacobian_error <= (JACOBIAN_IN_FLOAT32 if kind in CASTS else JACOBIAN)


@pytest.mark.slow
@pytest.mark.parametrize("kind", zoo.VERIFIED + zoo.READ_ONLY)
def test_the_sizes_are_those_of_the_config(kind: str) -> None:
    found, shape = measured(kind)
    assert found.supported and shape is not None
    top_k = {"longcat_flash": 3, "llama4_text": 1, "switch_transformers": 1, "zaya": 1}.get(kind, zoo.TOP_K)
    assert (shape.experts, shape.top_k, shape.model, shape.hidden) == (zoo.EXPERTS, top_k, zoo.MODEL, zoo.HIDDEN)
    assert found.adapter == OUTLIERS.get(kind, "fused")


@pytest.mark.slow
@pytest.mark.parametrize("kind", zoo.VERIFIED + zoo.READ_ONLY)
@torch.no_grad()
def test_a_capture_shows_what_each_expert_did(kind: str) -> None:
    """In flight where the model's implementation allows it; a capture fails if rows and experts do not match."""
    model = zoo.build(kind)
    anatomy = adapt(model)
    (captured,) = tiny_moe.run(model, anatomy, tiny_moe.prompts("The cat sat, again"), ("outputs", "gate"))
    for layer, batch in zip(anatomy.layers, captured.layers, strict=True):
        assert batch.up_in is not None and (batch.gate_in is None) == (layer.expert(0).gate is None)
        assert torch.equal(batch.output_norms.isfinite(), batch.served) and batch.served.any()
        assert torch.equal(batch.up_in.isfinite().all(-1), batch.served)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ernie4_5_vl_moe", "glm4v_moe", "qwen3_vl_moe"])
def test_a_model_of_text_and_images_is_read_by_its_text_part(kind: str) -> None:
    model = zoo.with_images(kind)
    anatomy = adapt(model)
    assert anatomy.shape == measured(f"{kind}_text")[1] and not any("vision" in each.name for each in anatomy.layers)
    assert max(verify(model, anatomy, TEXT).output_error) < BLOCK


def test_no_type_of_the_pinned_transformers_is_forgotten() -> None:
    """Whatever model file has fused experts has a row, or is a copy for another part of such a model."""
    models = Path(transformers.__file__).parent / "models"
    fused = {f.parent.name for f in models.glob("*/modeling_*.py") if "use_experts_implementation" in f.read_text()}
    rows = {CONFIG_MAPPING[kind].__module__.split(".")[-2] for kind in zoo.KINDS}
    assert len(fused) > 60 and not fused - rows


def test_the_committed_table_is_sorted_whole_and_the_readmes() -> None:
    rows = architectures()
    assert [row.type for row in rows] == sorted(zoo.KINDS)
    assert FILE.read_text() == as_json(list(rows))
    text = README.read_text()
    assert all(text.count(mark) == 1 for mark in MARKS) and marked(text) == as_markdown(rows)


def test_the_command_line_prints_the_table_without_loading_torch() -> None:
    code = (
        "import sys; sys.argv = ['moe-geometry', 'checkpoints', 'architectures', *sys.argv[1:]]\n"
        "from backend.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    sys.stderr.write(' '.join({'torch', 'transformers', 'duckdb'} & set(sys.modules)))"
    )
    told = [
        subprocess.run([sys.executable, "-c", code, *more], capture_output=True, text=True)
        for more in ((), ("--json",))
    ]
    assert [(done.returncode, done.stderr) for done in told] == [(0, ""), (0, "")]
    assert json.loads(told[1].stdout) == json.loads(FILE.read_text())
    head, *rows = told[0].stdout.splitlines()
    assert head.split() == ["type", "adapter", "supported", "block_error", "jacobian_error", "remarks"]
    assert len(rows) == len(zoo.KINDS) and re.match(r"afmoe +fused +True +1e-0\d +1e-1\d +shared expert", rows[0])
