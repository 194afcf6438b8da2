"""One live backend with tiny checkpoints for all tests of questions and jobs: starting workers is what costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backend.settings import Settings
from tests.backend import lab_corpus as random_words
from tests.backend import terminal as here
from tests.backend import tiny_olmoe
from tests.backend.inline import InlinePool, InlineRunner
from tests.backend.live import Live, serving
from tests.backend.terminal import Terminal


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two random checkpoints, `tiny` and `other`."""
    folder = tmp_path_factory.mktemp("models")
    tiny_olmoe.save(folder / "tiny")
    tiny_olmoe.save(folder / "other", seed=1)
    return folder


@pytest.fixture(scope="session")
def live(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A backend on a port of its own."""
    here = tmp_path_factory.mktemp("live")
    settings = Settings(data=here / "data", store=here / "store", device="cpu", extra_roots=(tiny_models,))
    with serving(settings) as backend:
        yield backend


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """An empty store, and one root that checkpoints may be read from."""
    (tmp_path / "root").mkdir()
    return Settings(data=tmp_path / "data", store=tmp_path / "store", extra_roots=(tmp_path / "root",))


@pytest.fixture
def folder(settings: Settings, tiny: Path) -> Path:
    """A whole checkpoint of one's own to spoil."""
    return Path(shutil.copytree(tiny, settings.extra_roots[0] / "run" / "step-00020"))


@pytest.fixture
def tiny(tiny_models: Path) -> Path:
    """A checkpoint that lies under no root."""
    return tiny_models / "tiny"


@pytest.fixture(scope="session")
def lab_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the lab trains on."""
    folder = tmp_path_factory.mktemp("corpus")
    random_words.build(folder)
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """The command line, here."""
    return here.terminal(monkeypatch, capsys)


@pytest.fixture
def in_process(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line's questions and the lab's runs without processes of their own, which take longer to start."""
    monkeypatch.setattr("backend.cli.local.LocalRunner", lambda store, *_, paging: InlineRunner(store, paging))
    monkeypatch.setattr("backend.lab.series.worker_pool", lambda workers: InlinePool())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """These models are too small to share: on a busy machine two threads spend ten times the time waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
