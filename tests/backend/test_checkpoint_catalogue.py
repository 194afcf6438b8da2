"""Checkpoints one may name: found, registered, forgotten, and loaded with the weights they have or not at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.slots import Shape
from analysis.statistic import get
from backend.checkpoints import Checkpoint, Checkpoints, inspect, load, load_tokenizer
from backend.checkpoints.digests import Digests
from backend.checkpoints.source import fetch
from backend.errors import Conflict, NotFound, Refusal
from backend.settings import Settings
from backend.store import Store

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def config(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_question_looks_at_its_own_checkpoint_alone_and_sees_every_change_of_it(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(folder, folder.parent / "step-00040")
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        first = checkpoints.find("run/step-00020")
        with monkeypatch.context() as patched:
            patched.setattr("backend.checkpoints.catalogue.scan", None)
            assert checkpoints.find("run/step-00020") == first
        config(folder, rope_theta=5.0)
        assert checkpoints.find("run/step-00020").fingerprint != first.fingerprint
        shutil.rmtree(other)
        with pytest.raises(NotFound):
            checkpoints.find("run/step-00040")


def test_a_large_checkpoint_is_hashed_when_it_is_asked_about(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.checkpoints.source.HASHED_AT_ONCE", 1000)
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        assert checkpoints.list()[0].fingerprint is None
        found = checkpoints.find("run/step-00020")
        assert found.fingerprint and load(found, "cpu")
        assert checkpoints.list()[0].fingerprint == found.fingerprint, "the list knows it from now on"
        again = Checkpoints(settings, store)
        monkeypatch.setattr("hashlib.file_digest", None)
        assert again.find("run/step-00020").fingerprint == found.fingerprint, "known from before the restart"


def test_registering_keeps_a_folder_under_a_name_and_forgetting_leaves_its_files(
    settings: Settings, tiny: Path, tmp_path: Path
) -> None:
    inner = settings.extra_roots[0] / "deep" / "deeper" / "model"
    shutil.copytree(tiny, inner)
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        assert checkpoints.list() == []
        first = checkpoints.register(str(inner))
        assert first.id == "model" and first.registered
        assert checkpoints.register(str(inner)) == checkpoints.find("model")
        named = checkpoints.register(str(inner), name="mine")
        assert named.fingerprint == first.fingerprint
        with pytest.raises(Conflict, match="'mine' already"):
            checkpoints.register(str(inner), name="mine")
        assert [c.id for c in checkpoints.list()] == ["model", "mine"]
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        assert load(checkpoints.find("mine"), "cpu")
        checkpoints.delete("model")
        assert [c.id for c in checkpoints.list()] == ["mine"] and (inner / WEIGHTS).is_file()
        with pytest.raises(NotFound, match="known: mine"):
            checkpoints.delete("model")
        shutil.rmtree(inner)
        [gone] = checkpoints.list()
        assert gone.id == "mine" and gone.error


def test_a_checkpoint_is_verified_once_a_run_of_it_is_kept(settings: Settings, folder: Path) -> None:
    shape = Shape(("0",), experts=2, top_k=1, model=2, hidden=2)
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        before = checkpoints.find("run/step-00020")
        assert not before.verified
        state = get("prompt_counts").empty(shape)
        store.put_state("k", "prompt_counts", {"fingerprint": before.fingerprint}, state)
        assert checkpoints.find("run/step-00020") == replace(before, verified=True)


def test_what_lies_under_a_root_is_found_by_id_source_and_path_and_cannot_be_deleted(
    settings: Settings, folder: Path
) -> None:
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        found = checkpoints.find("run/step-00020")
        assert found == checkpoints.find(found.source) == checkpoints.find(str(folder))
        assert checkpoints.register(str(folder)) == found and store.checkpoints() == []
        with pytest.raises(Conflict, match="always read"):
            checkpoints.delete("run/step-00020")
        with pytest.raises(NotFound, match="known: run/step-00020") as caught:
            checkpoints.find("nobody")
        assert caught.value.known == ["run/step-00020"]


def test_loading_gives_the_stored_weights_in_evaluation_mode(settings: Settings, folder: Path) -> None:
    model = load(fetch(str(folder), settings, None, Digests()), "cpu")
    stored = load_file(folder / WEIGHTS)
    assert not model.training
    assert torch.equal(model.state_dict()["model.norm.weight"], stored["model.norm.weight"])


def test_a_tensor_that_is_missing_is_named_and_never_made_up(settings: Settings, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(Refusal, match=r"lacks 1 tensors .* model\.norm\.weight"):
        load(inspect(str(folder), settings), "cpu")


def test_sizes_that_do_not_fit_the_config_are_refused_by_file_and_tensor(settings: Settings, folder: Path) -> None:
    config(folder, vocab_size=300)
    shapes = (
        r"model\.safetensors of run/step-00020 holds lm_head\.weight with shape \[257, 16\], .*asks for \[300, 16\]"
    )
    with pytest.raises(Refusal, match=shapes):
        load(inspect(str(folder), settings), "cpu")


def test_experts_of_another_width_than_the_config_says_are_refused(settings: Settings, folder: Path) -> None:
    config(folder, intermediate_size=12)
    with pytest.raises(Refusal, match=r"run/step-00020 .*experts"):
        load(inspect(str(folder), settings), "cpu")


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_named_by_file_and_tensor(settings: Settings, folder: Path, wrong: float) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.1.mlp.experts.3.up_proj.weight"][2, 5:7] = wrong
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    told = r"model\.safetensors of run/step-00020 holds 2 numbers .* 128 of model\.layers\.1\.mlp\.experts\.3\.up_proj"
    with pytest.raises(Refusal, match=told):
        load(inspect(str(folder), settings), "cpu")


def test_an_index_that_names_the_wrong_file_is_refused_by_its_headers(settings: Settings, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / "a.safetensors", metadata={"format": "pt"})
    save_file({"other": torch.zeros(2)}, folder / "b.safetensors")
    weight_map = {name: "a.safetensors" for name in tensors} | {"lm_head.weight": "b.safetensors"}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    told = r"says that lm_head\.weight is in b\.safetensors, which does not hold it \(a\.safetensors does\)"
    with pytest.raises(Refusal, match=told):
        inspect(str(folder), settings)


def test_a_missing_tokenizer_is_told(settings: Settings, folder: Path) -> None:
    found = inspect(str(folder), settings)
    assert load_tokenizer(found)("ab")["input_ids"]
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(Refusal, match=r"has no tokenizer; put its tokenizer\.json"):
        load_tokenizer(found)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(Refusal, match="cannot read"):
        load_tokenizer(found)


def test_a_broken_checkpoint_cannot_be_loaded() -> None:
    with pytest.raises(Refusal, match="no good"):
        load(Checkpoint("a", "a", "a", error="no good"), "cpu")


def test_what_a_client_sees_holds_neither_stamp_nor_folder(settings: Settings, folder: Path) -> None:
    told = inspect(str(folder), settings).to_json()
    assert not {"stamp", "folder"} & set(told) and json.loads(json.dumps(told)) == told
