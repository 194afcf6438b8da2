"""Both services on free ports with a temporary store, and a browser that reports what it should never see."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

START_SECONDS = 120
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-prefers-reduced-motion"]


expect.set_options(timeout=90_000)


@dataclass(frozen=True)
class Services:
    """Where the pages and the API answer, and the frontend's process."""

    pages: str
    api: str
    frontend_pid: int


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(app: str, port: int, **environment: str) -> subprocess.Popen:
    """One uvicorn process in the repository's root."""
    command = [sys.executable, "-m", "uvicorn", "--factory", app, "--port", str(port), "--log-level", "warning"]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, cwd=root, env=os.environ | environment)


def wait_for(url: str, process: subprocess.Popen) -> None:
    """Until the address answers; a process that ended is an error at once."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, f"the service at {url} ended with {process.returncode}"
        try:
            if httpx.get(url, timeout=2).status_code < 500:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within {START_SECONDS} s")


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Backend and frontend as `make up` runs them, but for their ports and the store."""
    store, api, pages = tmp_path_factory.mktemp("store"), free_port(), free_port()
    backend = serve("backend.app:create_app", api, MOE_GEOMETRY_STORE=str(store), MOE_GEOMETRY_PORT=str(api))
    frontend = serve("frontend.app:create_app", pages, BACKEND_URL=f"http://127.0.0.1:{api}")
    try:
        wait_for(f"http://127.0.0.1:{api}/api/v1/health", backend)
        wait_for(f"http://127.0.0.1:{pages}/api/v1/health", frontend)
        _add_few(f"http://127.0.0.1:{api}/api/v1")
        yield Services(f"http://127.0.0.1:{pages}", f"http://127.0.0.1:{api}/api/v1", frontend.pid)
    finally:
        for process in (frontend, backend):
            process.terminate()
        for process in (frontend, backend):
            process.wait(30)


def _add_few(api: str) -> None:
    """`few`: every fourth prompt of each task that ships, for pages where what is drawn matters, not how sure it is."""
    rows = (Path(__file__).parents[2] / "data/prompts/four-tasks.jsonl").read_bytes().splitlines(keepends=True)
    httpx.post(f"{api}/prompts", files={"file": ("few.jsonl", b"".join(rows[::4]))}, timeout=60).raise_for_status()


@pytest.fixture(scope="module")
def browser(chromium_path: Path) -> Iterator[Browser]:
    """One Chromium a module: Playwright's loop must be gone before tests of coroutines run in this process."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(chromium_path), args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser, services: Services) -> Iterator[Page]:
    """A page that fails its test on a console error, an uncaught exception or a request to anyone but us."""
    context = browser.new_context(
        base_url=services.pages, viewport={"width": 1440, "height": 900}, color_scheme="light"
    )
    context.set_default_timeout(90_000)
    opened, wrong = context.new_page(), []
    opened.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type == "error" else None)
    opened.on("pageerror", lambda e: wrong.append(f"exception: {e}"))
    ours = (services.pages, "data:", "blob:")
    opened.on("request", lambda r: None if r.url.startswith(ours) else wrong.append(f"external request: {r.url}"))
    yield opened
    context.close()
    assert not wrong, "\n".join(wrong)
