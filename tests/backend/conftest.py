"""One live backend with tiny checkpoints for all tests of questions and jobs: starting workers is what costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.live import Live, serving


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
