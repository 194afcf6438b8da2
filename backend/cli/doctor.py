"""`moe-geometry doctor`: whether this machine has what the program needs, line by line."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from backend.settings import Settings

ROOMS = ("analysis", "backend", "frontend")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FRONTEND_PORT = 8050


def doctor() -> None:
    """Check Python, packages, device, store, browser and ports."""
    settings = Settings.from_environment()
    checks: dict[str, Callable[[Settings], str]] = {
        "python": _python,
        "packages": _packages,
        "device": _device,
        "memory": lambda s: f"{s.memory_budget / 1e9:.1f} GB for models (MOE_GEOMETRY_MEMORY), paging {s.paging}",
        "store": _store,
        "checkpoints": _checkpoints,
        "browser": _browser,
        "ports": _ports,
    }
    failed = False
    for name, check in checks.items():
        try:
            typer.echo(f"ok    {name}: {check(settings)}")
        except Exception as error:
            failed = True
            typer.echo(f"FAIL  {name}: {error}")
    if failed:
        raise typer.Exit(1)


def _python(settings: Settings) -> str:
    return f"{sys.version.split()[0]} ({sys.executable})"


def _packages(settings: Settings) -> str:
    """All three rooms from one place: another distribution may ship a top-level package of the same name."""
    homes = {room: Path(importlib.import_module(room).__file__ or "").resolve().parents[1] for room in ROOMS}
    if len(set(homes.values())) > 1:
        raise RuntimeError("rooms come from different places: " + ", ".join(f"{r} from {h}" for r, h in homes.items()))
    return f"{', '.join(ROOMS)} from {homes['backend']}"


def _device(settings: Settings) -> str:
    import torch

    from backend.runners.device import resolve_device

    return f"{resolve_device(settings.device)} (MOE_GEOMETRY_DEVICE={settings.device}, torch {torch.__version__})"


def _store(settings: Settings) -> str:
    from backend.store import Store, serving

    served = serving(settings.store)
    if served:
        return f"{settings.store}, held by process {served.pid} at {served.url}"
    if not settings.store.exists():
        parent = settings.store.absolute().parent
        if not os.access(parent, os.W_OK):
            raise RuntimeError(f"{parent} cannot be written; name another folder in MOE_GEOMETRY_STORE")
        return f"{settings.store} (made at the first question)"
    with Store.open(settings.store):
        return f"{settings.store}, schema {Store.schema}, nobody holds it"


def _checkpoints(settings: Settings) -> str:
    from backend.checkpoints import scan

    found = scan(settings.checkpoint_roots)
    broken = [c.id for c in found if c.error]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(found)} cannot be read: {', '.join(broken)}")
    return f"{len(found)} under {', '.join(map(str, settings.checkpoint_roots))}"


def _browser(settings: Settings) -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return found or "no Chromium on PATH; only the browser tests need one"


def _ports(settings: Settings) -> str:
    told = []
    for port in (settings.port, FRONTEND_PORT):
        with socket.socket() as probe:
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        told.append(f"{port} is {'taken' if taken else 'free'}")
    return ", ".join(told)
