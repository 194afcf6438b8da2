"""Checkpoints by their headers: what is one is described, what is none is named, what changed is noticed."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM

from analysis.lab.config import LabMoeConfig
from analysis.lab.model import LabMoeForCausalLM
from backend.checkpoints import Checkpoints, inspect, load, scan
from backend.checkpoints.digests import Digests
from backend.checkpoints.remembered import Remembered
from backend.checkpoints.source import read_folder
from backend.errors import Conflict, Refusal
from backend.settings import Settings
from backend.store import Store

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def lab(folder: Path, **changes: Any) -> Path:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": 0, "pad_token_id": 1}
    config = LabMoeConfig(**sizes | heads | {"num_experts": 4, "num_experts_per_tok": 2} | changes)
    LabMoeForCausalLM(config).half().save_pretrained(folder)
    return folder


def test_a_checkpoint_is_described_from_its_headers(settings: Settings, folder: Path) -> None:
    found = inspect(str(folder), settings)
    tensors = load_file(folder / WEIGHTS)
    parameters = sum(t.numel() for t in tensors.values())
    assert (found.id, found.run, found.step) == ("run/step-00020", "run", 20)
    assert (found.architecture, found.router, found.dense, found.soft) == ("olmoe", None, False, False)
    assert (found.layers, found.moe_layers, found.experts, found.top_k) == (2, 2, 4, 2)
    assert (found.model, found.hidden, found.dtype) == (16, 8, "float32")
    assert (found.parameters, found.memory_bytes) == (parameters, 4 * parameters)
    assert found.error is None and found.fingerprint and len(found.fingerprint) == 64


def test_other_families_keep_their_numbers_under_other_names(settings: Settings) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2}
    config = MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, num_local_experts=3)
    target = settings.extra_roots[0] / "mixtral"
    MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    found = inspect(str(target), settings)
    assert (found.experts, found.top_k, found.hidden, found.moe_layers) == (3, 2, 12, 2)
    assert (found.dtype, found.memory_bytes) == ("bfloat16", 2 * found.parameters)


def test_the_labs_routers_are_named_and_told_apart(settings: Settings) -> None:
    root = settings.extra_roots[0]
    free = inspect(str(lab(root / "free", router="loss_free")), settings)
    assert (free.architecture, free.router, free.dtype, free.soft) == (
        "moe_geometry_lab",
        "loss_free",
        "float16",
        False,
    )
    soft = inspect(str(lab(root / "soft", router="soft", num_experts_per_tok=4)), settings)
    assert soft.soft and soft.top_k == soft.experts == 4
    dense = inspect(str(lab(root / "dense", router="dense", num_experts=0, num_experts_per_tok=0)), settings)
    assert dense.dense and (dense.experts, dense.top_k, dense.moe_layers, dense.layers) == (0, 0, 0, 3)


def test_a_sharded_checkpoint_is_read_through_its_index(settings: Settings, folder: Path) -> None:
    whole = inspect(str(folder), settings)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    shards = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({n: tensors[n] for n in held}, folder / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    sharded = inspect(str(folder), settings)
    assert sharded.parameters == whole.parameters and sharded.moe_layers == 2
    assert load(replace(sharded), "cpu").config.num_experts == 4
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(Refusal, match=r"names the shard model-2-of-2\.safetensors, which is not in the folder"):
        inspect(str(folder), settings)
    (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    with pytest.raises(Refusal, match="a shard must be a file name in the same folder"):
        inspect(str(folder), settings)
    (folder / f"{WEIGHTS}.index.json").write_text("[]")
    with pytest.raises(Refusal, match="no index of shards"):
        inspect(str(folder), settings)


def cut(folder: Path, size: int) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:size])


def as_pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def config(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda f: (f / CONFIG).unlink(), r"is no checkpoint: it has no config\.json\. It holds .*model\.safetensors"),
        (lambda f: (f / CONFIG).write_text("{half"), "is not JSON"),
        (lambda f: (f / CONFIG).write_text("[]"), "names no `model_type`"),
        (lambda f: config(f, model_type="my_own", auto_map={"AutoModel": "x.Y"}), "code of its own .* never run"),
        (lambda f: config(f, num_hidden_layers="many"), "a config that olmoe refuses"),
        (as_pickle, r"pytorch_model\.bin, a pickle.* only safetensors are read\. .*convert it: python -c"),
        (lambda f: (f / WEIGHTS).rename(f / "weights.safetensors"), "neither model.safetensors nor"),
        (lambda f: (f / WEIGHTS).unlink(), "holds no weights"),
        (lambda f: cut(f, -1), r"is cut off: its header announces [\d,]+ bytes, [\d,]+ are there"),
        (lambda f: cut(f, 100), "cut off inside its header"),
        (lambda f: cut(f, 5), "no safetensors file"),
        (lambda f: cut(f, 0), "no safetensors file"),
        (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes() + b"x"), "is too long"),
        (lambda f: (f / WEIGHTS).write_bytes(b"\x80\x02}q\x00." * 100), "no safetensors file|broken header"),
        (lambda f: (f / WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"{}"), "hold no tensor"),
        (lambda f: (f / WEIGHTS).write_bytes((4).to_bytes(8, "little") + b"{bad"), "broken header"),
    ],
)
def test_what_is_no_checkpoint_is_named_in_a_sentence_everywhere(
    settings: Settings, folder: Path, spoil: Any, reason: str
) -> None:
    spoil(folder)
    with pytest.raises(Refusal, match=reason):
        inspect(str(folder), settings)
    [listed] = scan(settings.checkpoint_roots)
    assert listed.id == "run/step-00020" and listed.error and listed.fingerprint is None
    with Store.open(settings.store) as store:
        with pytest.raises(Refusal, match=reason):
            Checkpoints(settings, store).find("run/step-00020")
        with pytest.raises(Refusal, match=reason):
            Checkpoints(settings, store).register(str(folder))
        assert store.checkpoints() == []


def test_only_folders_under_the_roots_are_read(settings: Settings, folder: Path, tiny: Path, tmp_path: Path) -> None:
    for outside in (str(tiny), f"{folder}/../../../elsewhere", "../x", "~/x"):
        with pytest.raises(Refusal, match=r"outside the folders .* MOE_GEOMETRY_ROOTS"):
            inspect(outside, settings)
    link = settings.extra_roots[0] / "link"
    link.symlink_to(tiny)
    with pytest.raises(Refusal, match="outside the folders"):
        inspect(str(link), settings)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(tiny / WEIGHTS)
    with pytest.raises(Refusal, match="link to a place outside"):
        inspect(str(folder), settings)
    with pytest.raises(Refusal, match="There is no folder"):
        inspect(str(settings.extra_roots[0] / "nothing"), settings)
    with pytest.raises(Refusal, match="is a file"):
        inspect(str(folder / CONFIG), settings)
    for empty in ("", " ", "a\0b"):
        with pytest.raises(Refusal, match="source is empty"):
            inspect(empty, settings)


def test_a_source_may_be_relative_to_a_root(settings: Settings, folder: Path) -> None:
    assert inspect("run/step-00020", settings).folder == str(folder.resolve())


def test_scanning_finds_runs_and_single_folders_in_order_and_skips_the_rest(settings: Settings, tiny: Path) -> None:
    root = settings.extra_roots[0]
    for name in ("b/step-00020", "b/step-00003", "a/step-00000", "single", ".hidden/step-00000"):
        shutil.copytree(tiny, root / name)
    (root / "a" / ".step-00020.partial").mkdir()
    (root / "b" / "step-00100").mkdir()
    (root / "notes").mkdir()
    (root / "log.jsonl").touch()
    found = scan(settings.checkpoint_roots)
    assert [c.id for c in found] == ["a/step-00000", "b/step-00003", "b/step-00020", "b/step-00100", "single"]
    assert [c.id for c in found if c.error] == ["b/step-00100"]
    assert len({c.fingerprint for c in found if not c.error}) == 1, "the same files are the same checkpoint"


def test_scanning_again_reads_nothing_that_has_not_changed(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        shutil.copytree(folder, folder.parent / f"step-{number + 100:05d}")
    digests, remembered = Digests(), Remembered(settings.store / "checkpoints.json")
    first = scan(settings.checkpoint_roots, digests, remembered)
    monkeypatch.setattr("backend.checkpoints.scanning.read_folder", None)
    start = time.process_time()
    assert scan(settings.checkpoint_roots, digests, remembered) == first and len(first) == 61
    # Processor time, so that a busy machine does not fail it.
    assert time.process_time() - start < 0.1
    assert scan(settings.checkpoint_roots, Digests(), Remembered(settings.store / "checkpoints.json")) == first


def test_many_threads_list_what_grows_meanwhile(settings: Settings, folder: Path) -> None:
    remembered = Remembered(settings.store / "checkpoints.json")

    def grown(number: int) -> int:
        shutil.copytree(folder, folder.parent / f"step-{number + 100:05d}")
        return len(scan(settings.checkpoint_roots, Digests(), remembered))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(grown, range(40))) == 41
    kept = json.loads((settings.store / "checkpoints.json").read_text())
    assert len(kept) == 41


def test_more_experts_chosen_than_there_are_is_refused_by_its_key(settings: Settings, folder: Path) -> None:
    config(folder, num_experts_per_tok=99)
    [listed] = scan(settings.checkpoint_roots)
    assert listed.error is not None
    assert "num_experts_per_tok 99" in listed.error and "must be 1 to" in listed.error


def test_what_is_remembered_is_forgotten_with_any_change_that_could_matter(
    settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = settings.store / "checkpoints.json"
    read: list[Path] = []

    def listed() -> list[str | None]:
        read.clear()
        return [c.error for c in scan(settings.checkpoint_roots, Digests(), Remembered(file))]

    monkeypatch.setattr(
        "backend.checkpoints.scanning.read_folder", lambda f, *rest: (read.append(f), read_folder(f, *rest))[1]
    )
    assert listed() == [None] and read == [folder]
    assert listed() == [None] and not read
    monkeypatch.setenv("MOE_GEOMETRY_ADAPTERS", str(tmp_path))
    assert listed() == [None] and read == [folder]
    (folder.parent / "log.jsonl").write_text("{}\n")  # says how many tokens a step has seen
    assert listed() == [None] and read == [folder]
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-1])
    assert listed() != [None] and listed() != [None] and read == [folder], "an error is not kept"
    (folder / WEIGHTS).write_bytes(whole)
    file.write_text("{")
    assert listed() == [None] and read == [folder]


def test_two_folders_of_one_name_get_ids_of_their_own(settings: Settings, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, settings.extra_roots[0] / "same")
    shutil.copytree(tiny, other / "same")
    assert [c.id for c in scan((*settings.checkpoint_roots, other))] == ["same", "same-2"]


def test_a_changed_file_is_another_fingerprint_even_with_its_old_size_and_time(
    settings: Settings, folder: Path
) -> None:
    digests = Digests()
    before = scan(settings.checkpoint_roots, digests)[0]
    path = folder / WEIGHTS
    data, stat = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = scan(settings.checkpoint_roots, digests)[0]
    assert path.stat().st_mtime_ns == stat.st_mtime_ns and path.stat().st_size == stat.st_size
    assert after.fingerprint != before.fingerprint
    config(folder, rope_theta=5.0)
    assert scan(settings.checkpoint_roots, digests)[0].fingerprint not in (before.fingerprint, after.fingerprint)
    with pytest.raises(Conflict, match="changed while"):
        load(after, "cpu")


def test_another_tokenizer_is_another_fingerprint(settings: Settings, folder: Path) -> None:
    seen = [scan(settings.checkpoint_roots)[0].fingerprint]
    for text in ('{"clean_up_tokenization_spaces": true}', '{"clean_up_tokenization_spaces": false}'):
        (folder / "tokenizer_config.json").write_text(text)
        seen.append(scan(settings.checkpoint_roots)[0].fingerprint)
    assert len(set(seen)) == 3
