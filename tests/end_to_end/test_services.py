"""The two services as one origin: streams, uploads, errors, and a permalink that comes first."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests.end_to_end.conftest import Services, free_port, serve, wait_for
from tests.end_to_end.panels import last_steps

pytestmark = [pytest.mark.slow, pytest.mark.alone]

MEBIBYTE = 1 << 20


def peak(pid: int) -> int:
    """The most memory the process ever held, in bytes."""
    told = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in told.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


@pytest.fixture
def alone() -> Iterator[tuple[str, int]]:
    """A frontend whose backend is away."""
    port = free_port()
    process = serve("frontend.app:create_app", port, BACKEND_URL=f"http://127.0.0.1:{free_port()}")
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                httpx.get(f"http://127.0.0.1:{port}/api/v1/health", timeout=5)
                break
            except httpx.TransportError:
                assert process.poll() is None
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(30)


def test_fifty_megabytes_pass_through_the_frontend_without_resting_there(services: Services) -> None:
    piece = (b'{"text": "' + b"x" * 5000 + b'"}\n') * 1000
    pieces = 50 * MEBIBYTE // len(piece) + 1
    head = b'--cut\r\nContent-Disposition: form-data; name="file"; filename="big.jsonl"\r\n\r\n'
    tail = b"\r\n--cut--\r\n"
    length = len(head) + pieces * len(piece) + len(tail)
    before = peak(services.frontend_pid)
    answer = httpx.post(
        f"{services.pages}/api/v1/prompts/preview",
        content=itertools.chain([head], itertools.repeat(piece, pieces), [tail]),
        headers={"content-type": "multipart/form-data; boundary=cut", "content-length": str(length)},
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["rows"] == 1000 * pieces
    assert peak(services.frontend_pid) - before < 20 * MEBIBYTE


def test_the_first_event_of_a_job_comes_within_a_second_through_the_frontend(services: Services) -> None:
    question = {
        "measure": "load_entropy",
        "checkpoints": [last_steps(services.api)["free-s1"]],
        "prompts": "four-tasks",
        "wait": 0,
    }
    job = httpx.post(f"{services.pages}/api/v1/questions", json=question, timeout=60)
    assert job.status_code == 202
    with httpx.Client(base_url=services.pages, timeout=60) as client:
        client.get("/api/v1/health")
        start = time.perf_counter()
        with client.stream("GET", job.json()["events"]) as events:
            first = next(events.iter_lines())
            assert time.perf_counter() - start < 1
            assert events.headers["content-type"].startswith("text/event-stream")
    assert first.startswith(("id:", "event:", ":"))


def test_an_unknown_api_path_is_404_in_json_and_not_the_page(services: Services) -> None:
    for path in ("/api/typo", "/api/v1/typo"):
        answer = httpx.get(services.pages + path, timeout=30)
        assert answer.status_code == 404 and answer.headers["content-type"].startswith("application/problem+json")
        assert answer.json()["detail"]


def test_without_a_backend_the_api_is_502_and_the_pages_still_stand(alone: tuple[str, int]) -> None:
    url, _ = alone
    answer = httpx.get(f"{url}/api/v1/health", timeout=30)
    assert answer.status_code == 502 and answer.headers["content-type"] == "application/problem+json"
    assert httpx.get(f"{url}/routing", timeout=30).status_code == 200


@pytest.mark.browser
def test_a_permalink_that_is_the_first_request_has_its_style_and_its_keys(browser: Browser, services: Services) -> None:
    port = free_port()
    process = serve("frontend.app:create_app", port, BACKEND_URL=services.api.removesuffix("/api/v1"))
    try:
        wait_for(f"http://127.0.0.1:{port}/api/v1/health", process)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/router?layer=1", timeout=90_000)
        page.wait_for_selector("main h1", timeout=90_000)
        assert "Inter" in page.evaluate("getComputedStyle(document.body).fontFamily")
        assert page.evaluate("typeof window.geometry.acts") == "object"
        page.close()
    finally:
        process.terminate()
        process.wait(30)
