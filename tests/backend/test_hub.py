"""The hub, without a network: what is fetched, what is refused, what is said when it cannot be reached."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from backend.checkpoints import Checkpoints, inspect
from backend.checkpoints.headers import read_header
from backend.errors import Refusal, Unavailable
from backend.settings import Settings
from backend.store import Store
from tests.backend import tiny_olmoe

SHA = "a" * 40


class Hub:
    """A hub with one model, or none to be reached."""

    def __init__(self, snapshot: Path, files: list[str]):
        self.snapshot, self.files = snapshot, files
        self.down: Exception | None = None
        self.cached = False
        self.fetched: dict[str, Any] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(huggingface_hub, "HfApi", lambda token=None: self)
        patch.setattr(huggingface_hub, "hf_hub_download", lambda name, file, **_: str(self.snapshot / file))
        patch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)

    def model_info(self, name: str, revision: str | None, timeout: float) -> Any:
        if self.down:
            raise self.down
        return SimpleNamespace(sha=SHA, siblings=[SimpleNamespace(rfilename=f) for f in self.files])

    def get_safetensors_metadata(self, name: str, revision: str) -> Any:
        tensors = read_header(self.snapshot / "model.safetensors")
        about = {n: SimpleNamespace(dtype=t.dtype, shape=list(t.shape)) for n, t in tensors.items()}
        return SimpleNamespace(files_metadata={"model.safetensors": SimpleNamespace(tensors=about)})

    def snapshot_download(self, name: str, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only and not self.cached:
            raise LocalEntryNotFoundError("nothing cached")
        self.fetched = options
        return str(self.snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tiny_olmoe.save(tmp_path / "cache" / SHA), ["config.json", "model.safetensors", "pytorch_model.bin"])
    found.install(monkeypatch)
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", store=tmp_path / "store")


def test_inspecting_reads_headers_and_keeps_nothing(hub: Hub, settings: Settings) -> None:
    found = inspect("someone/tiny", settings)
    assert (found.id, found.revision, found.experts, found.moe_layers) == ("someone/tiny", SHA, 4, 2)
    assert found.memory_bytes and found.fingerprint is None and hub.fetched == {}


def test_registering_fetches_safetensors_at_the_commit_and_no_pickle(hub: Hub, settings: Settings) -> None:
    with Store.open(settings.store) as store:
        found = Checkpoints(settings, store).register("someone/tiny", "main")
        assert (found.id, found.source, found.revision) == ("someone/tiny", "someone/tiny", SHA)
        assert hub.fetched["revision"] == SHA
        assert "*.safetensors" in hub.fetched["allow_patterns"]
        assert not [p for p in hub.fetched["allow_patterns"] if p.endswith((".bin", ".py", ".pt"))]
        again = Checkpoints(settings, store).find("someone/tiny")
        assert again.fingerprint == found.fingerprint and not again.error


def test_a_model_of_pickles_alone_is_refused_before_anything_is_fetched(hub: Hub, settings: Settings) -> None:
    hub.files = ["config.json", "pytorch_model.bin"]
    for act in (inspect, lambda s, settings: Checkpoints(settings, Store.open(settings.store)).register(s)):
        with pytest.raises(Refusal, match="has no safetensors file, and pickles are never read"):
            act("someone/tiny", settings)
    assert hub.fetched == {}


def test_a_hub_that_cannot_be_reached_is_told_in_a_sentence(hub: Hub, settings: Settings) -> None:
    for error in (OfflineModeIsEnabled("offline"), ConnectionError("no route"), TimeoutError()):
        hub.down = error
        with pytest.raises(Unavailable, match="cannot be reached for someone/tiny"):
            inspect("someone/tiny", settings)


def test_offline_an_earlier_download_is_used(hub: Hub, settings: Settings) -> None:
    hub.down = OfflineModeIsEnabled("offline")
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        with pytest.raises(Unavailable):
            checkpoints.register("someone/tiny")
        hub.cached = True
        assert checkpoints.register("someone/tiny").revision == SHA


def test_a_config_of_the_hub_without_a_type_is_refused(hub: Hub, settings: Settings) -> None:
    (hub.snapshot / "config.json").write_text(json.dumps({"hidden_size": 4}))
    with pytest.raises(Refusal, match="names no `model_type`"):
        inspect("someone/tiny", settings)
