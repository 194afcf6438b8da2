"""The command line in this process, which has loaded torch already; a test of test_cli.py starts a real one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from backend.cli import main
from backend.settings import Settings


@dataclass(frozen=True)
class Ended:
    """As `subprocess.CompletedProcess` says it."""

    returncode: int
    stdout: str
    stderr: str


Terminal = Callable[..., Ended]
"""Settings and words, to what was printed."""


def environment(settings: Settings) -> dict[str, str]:
    return {
        "MOE_GEOMETRY_DATA": str(settings.data),
        "MOE_GEOMETRY_STORE": str(settings.store),
        "MOE_GEOMETRY_DEVICE": "cpu",
        "MOE_GEOMETRY_ROOTS": os.pathsep.join(map(str, settings.extra_roots)),
    }


def terminal(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Terminal:
    def run(settings: Settings, *words: str) -> Ended:
        for name, value in environment(settings).items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["moe-geometry", *words])
        capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capture.readouterr())  # type: ignore[arg-type]

    return run
