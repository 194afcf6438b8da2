"""Ask the running services through the frontend's origin: check.py ask|stored ORIGIN FILE. Standard library only.

`ask` computes an answer and keeps it in FILE; `stored` wants that very answer from the store, without a job.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 240
# The first listing imports torch and transformers: seconds on an idle machine, a minute or two on a loaded one.
CALL_SECONDS = 180


def call(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and JSON (or the raw text of a page)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, headers={"Content-Type": "application/json", "Accept": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as refused:
        status, text = refused.code, refused.read().decode()
    return status, json.loads(text) if text[:1] in "{[" else text


def question(origin: str) -> dict[str, Any]:
    """The load of the last shipped step of the loss-free run, or of any checkpoint with experts."""
    _, listed = call(f"{origin}/api/v1/checkpoints")
    routed = sorted(c["id"] for c in listed["checkpoints"] if not c["dense"])
    assert routed, f"no shipped checkpoint with experts in the image: {listed}"
    chosen = [name for name in routed if name.startswith("free/")] or routed
    return {"measure": "expert_load", "checkpoints": [chosen[-1]], "prompts": "four-tasks", "knobs": {}}


def ask(origin: str) -> dict[str, Any]:
    """Post until the answer is there; the same question twice is the same job."""
    asked, until = question(origin), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        status, reply = call(f"{origin}/api/v1/questions", asked | {"wait": 15.0})
        if status == 200:
            return reply
        assert status == 202, f"{status}: {reply}"
    raise AssertionError(f"no answer within {PATIENCE_SECONDS} s: {call(f'{origin}/api/v1/jobs')}")


def main(mode: str, origin: str, kept: Path) -> None:
    """Raise with what was seen if a service misbehaves."""
    status, page = call(f"{origin}/")
    assert status == 200 and "<html" in page, f"the frontend's page: {status}"
    status, health = call(f"{origin}/api/v1/health")
    assert status == 200 and health["status"] == "ok", f"health through the proxy: {status} {health}"
    status, typo = call(f"{origin}/api/typo")
    assert status == 404 and isinstance(typo, dict), f"/api/typo must be 404 JSON: {status} {typo}"
    if mode == "ask":
        answer = ask(origin)
        kept.write_text(json.dumps(answer))
        print(f"answered: {answer['measure']} of {answer['tokens']} tokens, {answer['provenance']['seconds']} s")
        return
    status, answer = call(f"{origin}/api/v1/questions", question(origin) | {"only_stored": True})
    assert status == 200, f"the stored answer is gone: {status} {answer}"
    before = json.loads(kept.read_text())
    assert answer["values"] == before["values"] and answer["provenance"]["created"] == before["provenance"]["created"]
    print("the stored answer is the one given before")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2].rstrip("/"), Path(sys.argv[3]))
    except (AssertionError, OSError) as problem:
        sys.exit(f"check: {problem}")
