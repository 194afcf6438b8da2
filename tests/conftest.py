"""What tests of several rooms share."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import hypothesis
import pytest

from tests import chromium

ROOT = Path(__file__).resolve().parents[1]

gc.disable()
# How fast a machine draws examples says nothing of ours, and a busy one has failed for it.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, as deselected, what needs a CUDA device where there is none."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not _has_card():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in needing]


def _has_card() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported out of every later search for garbage: millions of objects, a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def tracked(root: Path) -> tuple[Path, ...]:
    """Every file that git tracks (or would, if it were added), relative to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return tuple(Path(name) for name in sorted(set(listed.split("\0"))) if name and (root / name).is_file())


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The browser's executable, for Playwright's `executable_path`."""
    found = chromium.find()
    assert found, chromium.MISSING
    return found
