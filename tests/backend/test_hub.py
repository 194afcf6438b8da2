"""The hub over its real HTTP interface: what travels when, what is refused, what a broken download leaves behind."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from backend.checkpoints import Checkpoint, Checkpoints, inspect, load
from backend.errors import NotFound, Refusal, Unavailable
from backend.runners.failures import TaskCancelled
from backend.settings import Settings
from backend.store import Store
from tests.backend import fake_hub, tiny_olmoe
from tests.backend.fake_hub import NAME, TOKEN, FakeHub

pytestmark = pytest.mark.slow
WEIGHTS = "model.safetensors"


def silent(stage: str, fraction: float) -> None: ...


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tiny_olmoe.save(tmp_path / "repository")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling_own.py").write_text("raise SystemExit('code of the folder was run')")
    return folder


@pytest.fixture
def hub(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub.running() as found:
        found.install(monkeypatch, tmp_path / "cache")
        found.add(model)
        yield found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", store=tmp_path / "store")


@pytest.fixture
def checkpoints(settings: Settings) -> Iterator[Checkpoints]:
    with Store.open(settings.store) as store:
        yield Checkpoints(settings, store)


def test_registering_leaves_the_weights(hub: FakeHub, settings: Settings, checkpoints: Checkpoints) -> None:
    seen = inspect(NAME, settings)
    assert (seen.id, seen.revision, seen.experts, seen.moe_layers) == (NAME, hub.branches[NAME, "main"], 4, 2)
    kept = checkpoints.register(NAME)
    assert not kept.fetched and kept.weight_bytes and kept.memory_bytes == seen.memory_bytes
    assert hub.fetched() == [] and checkpoints.find(NAME) == kept
    with pytest.raises(Refusal, match=r"weights of someone/tiny \(0 MB\) are still on the hub; ask any measure"):
        load(kept, "cpu")


def test_what_the_hub_announces_is_the_fingerprint_of_the_files_that_come(
    hub: FakeHub, settings: Settings, checkpoints: Checkpoints, model: Path
) -> None:
    kept = checkpoints.register(NAME)
    local = inspect(str(model), replace(settings, extra_roots=(model.parent,)))
    assert kept.fingerprint == local.fingerprint, "one content, one fingerprint, wherever it lies"
    told: list[float] = []
    here = checkpoints.bring(kept, lambda stage, fraction: told.append(fraction))
    assert here.fetched and told[-1] == 1.0 and len(hub.fetched()) == 1
    assert load(here, "cpu").config.num_experts == 4
    assert checkpoints.find(NAME) == here
    cache = Path(here.folder)
    assert not {"pytorch_model.bin", "modeling_own.py"} & {path.name for path in cache.iterdir()}
    before = len(hub.seen)
    assert checkpoints.bring(checkpoints.find(NAME), silent).fetched and len(hub.seen) == before


def test_a_revision_is_pinned_to_its_commit(hub: FakeHub, settings: Settings, checkpoints: Checkpoints) -> None:
    old = checkpoints.register(f"{NAME}@main")
    new = hub.add(tiny_olmoe.save(settings.store.parent / "moved", seed=1))
    assert checkpoints.register(NAME).revision == new != old.revision
    here = checkpoints.bring(checkpoints.find(f"{NAME}@main"), silent)
    assert here.revision == old.revision and here.fingerprint == old.fingerprint
    assert [seen.path for seen in hub.seen if seen.path.startswith("/large/")][-1].endswith("repository/" + WEIGHTS)
    with pytest.raises(Refusal, match="name two revisions; give one"):
        inspect(f"{NAME}@main", settings, "other")


def test_a_broken_download_goes_on_where_it_stopped(
    hub: FakeHub, checkpoints: Checkpoints, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 512)
    kept = checkpoints.register(NAME)
    hub.breaks = 1
    here = checkpoints.bring(kept, silent)
    half = (model / WEIGHTS).stat().st_size // 2
    assert [seen.range for seen in hub.fetched()] == [None, f"bytes={half - half % 512}-"]
    assert (Path(here.folder) / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()


def test_a_download_that_breaks_for_good_is_told_and_leaves_nothing_half(
    hub: FakeHub, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    kept = checkpoints.register(NAME)
    hub.other = b""
    with pytest.raises(Unavailable, match=r"download of model\.safetensors of someone/tiny broke off .*Ask again"):
        checkpoints.bring(kept, silent)
    assert not list((tmp_path / "cache").rglob("*.incomplete")) and not checkpoints.find(NAME).fetched
    hub.other = None
    assert checkpoints.bring(kept, silent).fetched


def test_other_bytes_than_announced_are_thrown_away(hub: FakeHub, checkpoints: Checkpoints, model: Path) -> None:
    kept = checkpoints.register(NAME)
    data = bytearray((model / WEIGHTS).read_bytes())
    data[-1] ^= 1
    hub.other = bytes(data)
    with pytest.raises(Unavailable, match=r"came as model\.safetensors of someone/tiny is not the file .*announced"):
        checkpoints.bring(kept, silent)
    hub.other = None
    assert checkpoints.bring(checkpoints.find(NAME), silent).fetched


def test_a_file_that_caches_share_under_another_name_is_what_was_announced(
    hub: FakeHub, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    kept = checkpoints.register(NAME)
    here = checkpoints.bring(kept, silent)
    blob, shared = (Path(here.folder) / WEIGHTS).resolve(), tmp_path / ("ab" * 32)
    blob.rename(shared)
    blob.symlink_to(shared)
    again = checkpoints.bring(kept, silent)
    assert again.fingerprint == here.fingerprint and shared.is_file() and len(hub.fetched()) == 1


def test_a_download_can_be_cancelled(hub: FakeHub, checkpoints: Checkpoints) -> None:
    def stop(stage: str, fraction: float) -> None:
        raise TaskCancelled("cancelled")

    with pytest.raises(TaskCancelled):
        checkpoints.bring(checkpoints.register(NAME), stop)
    assert not checkpoints.find(NAME).fetched


def test_weights_that_left_the_cache_are_fetched_again(hub: FakeHub, checkpoints: Checkpoints) -> None:
    here = checkpoints.bring(checkpoints.register(NAME), silent)
    shutil.rmtree(Path(here.folder).parents[1])
    gone = checkpoints.find(NAME)
    assert not gone.fetched and gone.fingerprint == here.fingerprint
    assert checkpoints.bring(gone, silent).fetched


def test_a_file_changed_in_the_cache_is_another_checkpoint(hub: FakeHub, checkpoints: Checkpoints) -> None:
    here = checkpoints.bring(checkpoints.register(NAME), silent)
    path = (Path(here.folder) / WEIGHTS).resolve()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert checkpoints.find(NAME).fingerprint != here.fingerprint


def test_the_token_goes_to_the_hub_alone(
    hub: FakeHub, settings: Settings, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.gated.add(NAME)
    with Store.open(settings.store) as store:
        with pytest.raises(Refusal, match="is gated on the hub: accept its terms there and set HF_TOKEN") as caught:
            Checkpoints(replace(settings, hub_token="hf_wrongwrongwrong"), store).register(NAME)
        assert "wrongwrong" not in str(caught.value)
        allowed = Checkpoints(replace(settings, hub_token=TOKEN), store)
        allowed.bring(allowed.register(NAME), silent)
    hosts = {
        seen.path.startswith("/large/"): seen.token for seen in hub.seen if seen.token != "Bearer hf_wrongwrongwrong"
    }
    assert hosts == {False: f"Bearer {TOKEN}", True: None}
    printed = capfd.readouterr()
    assert TOKEN not in caplog.text + printed.out + printed.err + repr(replace(settings, hub_token=TOKEN))


def test_a_token_that_lies_on_the_disk_is_not_taken(
    hub: FakeHub, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    inspect(NAME, settings)
    assert {seen.token for seen in hub.seen} == {None}


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-5000])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda f: (f / WEIGHTS).unlink(),
            r"no safetensors file, only pytorch_model\.bin; pickles run code .* convert it: python -c .*tiny'",
        ),
        (lambda f: (f / "config.json").unlink(), r"on the hub has no config\.json"),
        (lambda f: (f / "config.json").write_text('{"hidden_size": 4}'), "names no `model_type`"),
        (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / WEIGHTS).rename(f / "weights.safetensors"), r"neither model\.safetensors nor"),
        (lambda f: (f / WEIGHTS).write_bytes(b"no tensors here" * 9), r"model\.safetensors .*is no safetensors file"),
        (cut, r"model\.safetensors of someone/tiny on the hub is cut off"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
            r"on the hub lacks b\.safetensors, which its model\.safetensors\.index\.json names",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused_before_any_weight_travels(
    hub: FakeHub, settings: Settings, checkpoints: Checkpoints, model: Path, spoil: object, reason: str
) -> None:
    spoil(model)  # type: ignore[operator]
    hub.add(model)
    for act in (lambda: inspect(NAME, settings), lambda: checkpoints.register(NAME)):
        with pytest.raises(Refusal, match=reason):
            act()
    assert hub.fetched() == [] and hub.fetched(".bin") == [] and checkpoints.list() == []


def test_names_that_the_hub_does_not_know_are_told(hub: FakeHub, settings: Settings, checkpoints: Checkpoints) -> None:
    with pytest.raises(Refusal, match="There is no model nobody/nothing on the hub, or it is private"):
        inspect("nobody/nothing", settings)
    with pytest.raises(Refusal, match="someone/tiny has no revision 'step5' on the hub"):
        inspect(f"{NAME}@step5", settings)
    with pytest.raises(NotFound, match=f"added with `moe-geometry checkpoints add {NAME}`"):
        checkpoints.find(NAME)


def test_shards_come_one_by_one_and_what_is_there_does_not_travel_again(
    hub: FakeHub, checkpoints: Checkpoints, model: Path
) -> None:
    tensors = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    names = sorted(tensors)
    shards = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({n: tensors[n] for n in held}, model / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (model / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    hub.add(model)
    kept, stages = checkpoints.register(NAME), []

    def stop_at_the_second(stage: str, fraction: float) -> None:
        stages.append(stage)
        if len(stages) == 2:
            raise TaskCancelled("cancelled")

    with pytest.raises(TaskCancelled):
        checkpoints.bring(kept, stop_at_the_second)
    assert not checkpoints.find(NAME).fetched
    assert load(checkpoints.bring(checkpoints.find(NAME), silent), "cpu").config.num_experts == 4
    assert [Path(seen.path).name for seen in hub.fetched()] == [*shards, "model-2-of-2.safetensors"]


def test_small_weights_that_the_hub_keeps_without_a_digest_are_fetched_to_be_hashed(
    hub: FakeHub, settings: Settings, checkpoints: Checkpoints, model: Path
) -> None:
    hub.plain = True
    kept: Checkpoint = checkpoints.register(NAME)
    assert kept.fetched
    assert kept.fingerprint == inspect(str(model), replace(settings, extra_roots=(model.parent,))).fingerprint


def test_offline_an_earlier_download_is_used_and_nothing_is_asked(
    hub: FakeHub, settings: Settings, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE is set, so the hub is not asked"):
        checkpoints.register(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    kept = checkpoints.register(f"{NAME}@main")
    checkpoints.delete(kept.id)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE"):
        checkpoints.bring(kept, silent)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    here, asked = checkpoints.bring(kept, silent), len(hub.seen)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    again = checkpoints.register(f"{NAME}@{kept.revision}")
    assert (again.fingerprint, again.revision, again.fetched) == (here.fingerprint, kept.revision, True)
    assert len(hub.seen) == asked


def test_a_hub_that_cannot_be_reached_is_told_in_a_sentence(
    hub: FakeHub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(Unavailable, match="cannot be reached for someone/tiny"):
        inspect(NAME, settings)
