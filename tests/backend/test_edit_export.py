"""An edited checkpoint that is written loads in transformers and is the model that was tried."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer

from analysis.lab.model import register
from backend.adapters import adapt
from backend.checkpoints.digests import Digests
from backend.checkpoints.source import read_folder
from backend.edits import edit_from
from backend.edits.exporting import export
from backend.errors import Conflict, Refusal
from tests.backend import tiny_moe
from tests.backend.edited import edited, run, subject

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
MERGE = {"kind": "merge", "layer": "1", "first": 0, "second": 5}
KEEP = [[0, 2, 5, 7], [1, 2, 3, 4], [0, 4, 6, 7]]


def saved(folder: Path, family: str, seed: int = 0):
    register()
    tiny_moe.build(tiny_moe.FAMILIES[family], seed=seed).save_pretrained(folder)
    tiny_moe.tokenizer().save_pretrained(folder)
    return read_folder(folder, None, Digests(), hash_all=True)


def digests(folder: str) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path(folder).iterdir()}


@pytest.mark.parametrize("family", ("olmoe", "mixtral", "lab_loss_free"))
@pytest.mark.parametrize("spec", (MERGE, {"kind": "topk", "k": 3}, {"kind": "prune", "keep": KEEP}))
def test_what_is_written_loads_and_is_what_was_tried(tmp_path: Path, family: str, spec: dict) -> None:
    checkpoint = saved(tmp_path / "own", family)
    before, edit = digests(checkpoint.folder), edit_from(spec)
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder).eval()
    usage = run(model).usage
    tried = edited(model, edit, usage=usage)
    size = export(checkpoint, edit, usage.tolist(), tmp_path / "new")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "new").eval()
    again = run(written)
    assert_close(again.loss, tried.loss, atol=2e-5, rtol=0, equal_nan=True)
    assert again.shape.top_k == tried.shape.top_k and size == written.num_parameters()
    saving = edit.saved(subject(model))
    if spec["kind"] == "prune":
        assert adapt(written).shape.experts == 4 and saving is not None
        buffers = sum(t.numel() for n, t in model.named_buffers() if "correction_bias" in n) // 2
        assert model.num_parameters() - size in (saving.parameters, saving.parameters - buffers)
    assert digests(checkpoint.folder) == before
    assert json.loads((tmp_path / "new" / "edit.json").read_text())["edit"] == json.loads(json.dumps(edit.to_json()))
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "new")("abc")["input_ids"] == tiny_moe.tokenizer()("abc")["input_ids"]
    )


def test_routers_are_written_where_the_rule_is_the_same(tmp_path: Path) -> None:
    checkpoint, other = (saved(tmp_path / name, "lab_loss_free", seed) for seed, name in enumerate(("own", "other")))
    unlike = saved(tmp_path / "unlike", "lab_kmeans")
    edit = edit_from({"kind": "routers", "checkpoint": "other"})
    own, donor = (AutoModelForCausalLM.from_pretrained(c.folder).eval() for c in (checkpoint, other))
    usage = torch.zeros(3, 8, dtype=torch.long).tolist()
    export(checkpoint, edit, usage, tmp_path / "new", other)
    written = run(AutoModelForCausalLM.from_pretrained(tmp_path / "new").eval())
    assert_close(written.loss, edited(own, edit, other=adapt(donor)).loss, atol=1e-5, rtol=0, equal_nan=True)
    with pytest.raises(Refusal, match="another rule"):
        export(checkpoint, edit, usage, tmp_path / "newer", unlike)


def test_what_no_checkpoint_can_say_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    checkpoint, usage = saved(tmp_path / "own", "mixtral"), [[0] * 8] * 3
    for spec, said in (
        ({"kind": "off", "layer": "1", "expert": 2}, "lives in the forward pass"),
        ({"kind": "prune", "keep": [[0, 1], [0, 1, 2], [0, 1]]}, "one number for all"),
    ):
        with pytest.raises(Refusal, match=said):
            export(checkpoint, edit_from(spec), usage, tmp_path / "new")
    with pytest.raises(Conflict, match="there already"):
        export(checkpoint, edit_from(MERGE), usage, tmp_path / "own")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own"]
