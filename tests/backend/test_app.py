"""The API answers everything in its own words: what it serves as JSON, what it refuses as problem+json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from analysis.errors import NoExperts
from backend.app import create_app
from backend.errors import Unavailable
from backend.runners.failures import TaskFailed
from backend.settings import Settings
from backend.store import Store, serving
from tests.backend import answers, tiny_olmoe

pytestmark = pytest.mark.slow

API = "/api/v1"
MEBIBYTE = 1 << 20


class Idle:
    """A runner that is never asked."""

    device = "cpu"
    status = "idle"
    closed = False

    def run(self, task: Any) -> Iterator[Any]:
        raise AssertionError("nothing here runs a model")

    def cancel(self, task: str) -> None:
        raise AssertionError("nothing here is cancelled")

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    here = tmp_path_factory.mktemp("app")
    tiny_olmoe.save(here / "models" / "run" / "step-00020")
    (here / "data" / "prompts").mkdir(parents=True)
    (here / "data" / "prompts" / "basic.jsonl").write_text('{"text": "x", "category": "code"}\n{"text": "y"}\n')
    models = (here / "models",)
    return Settings(here / "data", here / "store", extra_roots=models, upload_cap=60 * MEBIBYTE, port=8123)


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    app = create_app(settings, Idle())

    @app.get("/boom/{kind}")
    def boom(kind: str) -> None:
        errors = [NoExperts("dense"), Unavailable("away", known=["a"]), TaskFailed("died"), TaskFailed("no", True)]
        raise {type(e).__name__ + str(e): e for e in errors}.get(kind, KeyError("a bug"))

    with TestClient(app, raise_server_exceptions=False) as opened:
        yield opened


def problem(response: httpx.Response, status: int) -> str:
    """The sentence of a problem, having checked its form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert {"type", "title", "status", "detail"} <= set(body) and body["status"] == status
    return body["detail"]


def upload(content: bytes, name: str = "a.csv") -> dict[str, Any]:
    return {"file": (name, content)}


def test_health_says_on_what_it_runs(client: TestClient, settings: Settings) -> None:
    body = client.get(f"{API}/health").json()
    assert body == {
        "status": "ok",
        "device": "cpu",
        "store": str(settings.store),
        "schema": Store.schema,
        "worker": "idle",
        "version": "0.1.0",
    }


@pytest.mark.parametrize("path", ["/api/typo", "/api/v1/typo", "/api/", "/api/v1/health/more", "/elsewhere"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_an_unknown_path_is_404_and_never_a_page(client: TestClient, path: str, method: str) -> None:
    assert path in problem(client.request(method, path), 404)


@pytest.mark.parametrize(
    ("kind", "status", "title", "detail"),
    [
        ("NoExpertsdense", 422, "Refused", "dense"),
        ("Unavailableaway", 503, "Unavailable", "away"),
        ("TaskFaileddied", 503, "The work failed", "died"),
        ("TaskFailedno", 422, "Refused", "no"),
        ("bug", 500, "Internal Server Error", "KeyError"),
    ],
)
def test_every_kind_of_error_has_its_status(
    client: TestClient, kind: str, status: int, title: str, detail: str
) -> None:
    response = client.get(f"/boom/{kind}")
    assert detail in problem(response, status) and response.json()["title"] == title


def test_what_would_have_been_accepted_is_listed(client: TestClient) -> None:
    response = client.get(f"{API}/prompts/nobody")
    assert "known: basic" in problem(response, 404) and response.json()["known"] == ["basic"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "query: field required"),
        ({"query": 5}, "query: input should be a valid string"),
        ({"query": "SELECT 1", "more": 1}, "more: extra inputs are not permitted"),
        ([], "the body: input should be"),
    ],
)
def test_a_body_of_the_wrong_form_is_told_where(client: TestClient, body: Any, sentence: str) -> None:
    assert sentence in problem(client.post(f"{API}/sql", json=body), 422)


def test_a_body_that_is_no_json_is_told(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"{half", b"\xff\xfe", b"", b"[" * 100_000):
        response = client.post(f"{API}/sql", content=content, headers=headers)
        assert problem(response, 400 if response.status_code == 400 else 422)


def test_every_answer_closes_what_is_not_needed(client: TestClient) -> None:
    for path in (f"{API}/health", "/api/typo", f"{API}/prompts/nobody"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_another_sites_page_may_not_call(client: TestClient) -> None:
    headers = {"sec-fetch-site": "cross-site"}
    assert "site" in problem(client.post(f"{API}/prompts", files=upload(b"text\nx\n"), headers=headers), 403)
    assert client.get(f"{API}/health", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_checkpoints_are_listed_inspected_registered_and_forgotten(client: TestClient, settings: Settings) -> None:
    [listed] = client.get(f"{API}/checkpoints").json()["checkpoints"]
    assert (listed["id"], listed["experts"], listed["error"]) == ("run/step-00020", 4, None)
    inner = settings.extra_roots[0] / "deep" / "deeper" / "model"
    shutil.copytree(settings.extra_roots[0] / "run" / "step-00020", inner)
    looked = client.get(f"{API}/checkpoints/inspect", params={"source": str(inner)}).json()
    assert looked["memory_bytes"] == listed["memory_bytes"]
    made = client.post(f"{API}/checkpoints", json={"source": str(inner), "name": "mine"})
    assert made.status_code == 201 and made.json()["id"] == "mine"
    assert [c["id"] for c in client.get(f"{API}/checkpoints").json()["checkpoints"]] == ["run/step-00020", "mine"]
    for name in ("../x", "..", "a/b", "mine@bf16", "a b"):
        other = client.post(f"{API}/checkpoints", json={"source": str(inner), "name": name})
        assert f"{name!r} is no name for a checkpoint: letters" in problem(other, 422)
    assert client.delete(f"{API}/checkpoints", params={"id": "mine"}).status_code == 204
    assert "known" in problem(client.delete(f"{API}/checkpoints", params={"id": "mine"}), 404)
    assert "always read" in problem(client.delete(f"{API}/checkpoints", params={"id": "run/step-00020"}), 409)
    shutil.rmtree(inner)


@pytest.mark.parametrize("source", ["/etc", "../..", "nothing", "", "a\0b", "x" * 5000, "https://example.org/model"])
def test_a_source_that_is_none_is_refused(client: TestClient, source: str) -> None:
    assert problem(client.post(f"{API}/checkpoints", json={"source": source}), 422)
    assert problem(client.get(f"{API}/checkpoints/inspect", params={"source": source}), 422)


def test_a_prompt_set_is_previewed_uploaded_read_and_forgotten(client: TestClient) -> None:
    content = b"id,text,category\n1,one,code\n1,two,\n3,,story\n"
    preview = client.post(f"{API}/prompts/preview", files=upload(content)).json()
    assert (preview["rows"], preview["good"], preview["mended"], preview["refused"]) == (3, 1, 1, 1)
    assert [row["state"] for row in preview["preview"]] == ["good", "mended", "refused"]
    assert [s["name"] for s in client.get(f"{API}/prompts").json()["prompts"]] == ["basic"]
    made = client.post(f"{API}/prompts", files=upload(content), data={"name": "mine"})
    assert made.status_code == 201
    body = made.json()
    assert (body["name"], body["prompts"], body["shipped"], body["refused"]) == ("mine", 2, False, 1)
    page = client.get(f"{API}/prompts/mine", params={"offset": 1, "limit": 1}).json()
    assert page["rows"] == [{"id": "1-2", "text": "two", "category": "uncategorised"}]
    assert "'mine' already" in problem(client.post(f"{API}/prompts", files=upload(content), data={"name": "mine"}), 409)
    assert client.delete(f"{API}/prompts/mine").status_code == 204
    assert problem(client.delete(f"{API}/prompts/mine"), 404)
    assert "ships" in problem(client.delete(f"{API}/prompts/basic"), 409)


@pytest.mark.parametrize(
    ("files", "data", "sentence"),
    [
        (upload(b""), {}, "a.csv is empty"),
        (upload(b"prompt\nx\n"), {}, "no `text` column; its first line names 'prompt'"),
        (upload(b"t\xffxt\nx\n"), {}, "Byte 1 of the file"),
        (upload(b"text\n" + b"z" * 100_000), {}, "100,000 characters; at most 32,000"),
        (upload(b"x", "a.exe"), {}, "known: .csv"),
        (upload(b"text\nx\n", "../../etc/passwd"), {}, "ends in 'nothing'"),
        (upload(b"text\nx\n"), {"name": "a/b"}, "is no name for a prompt set"),
        ({}, {"name": "x"}, "file: field required"),
        ({}, {"file": "text"}, "file:"),
    ],
)
def test_an_upload_that_cannot_be_used_is_refused_and_nothing_is_kept(
    client: TestClient, files: Any, data: Any, sentence: str
) -> None:
    assert sentence in problem(client.post(f"{API}/prompts", files=files, data=data), 422)
    assert [s["name"] for s in client.get(f"{API}/prompts").json()["prompts"]] == ["basic"]
    assert client.get(f"{API}/health").json()["status"] == "ok"


def test_a_file_of_50_megabytes_is_read_through_http(client: TestClient) -> None:
    row = b"word " * 525 + b"\n"
    response = client.post(f"{API}/prompts/preview", files=upload(b"text\n" + row * 20_000))
    assert response.status_code == 200 and response.json()["good"] == 20_000


def test_an_upload_over_the_cap_is_413_whether_or_not_it_says_its_length(client: TestClient) -> None:
    big = b"x" * (60 * MEBIBYTE + 1)
    assert "62,914,560 bytes" in problem(client.post(f"{API}/prompts", files=upload(big)), 413)
    bigger = b"x" * (62 * MEBIBYTE)
    assert "61 MiB" in problem(client.post(f"{API}/prompts", files=upload(bigger)), 413)
    request = client.build_request("POST", f"{API}/prompts", files=upload(bigger))
    headers = {"content-type": request.headers["content-type"]}
    silent = client.post(f"{API}/prompts", content=iter([request.read()]), headers=headers)
    assert "61 MiB" in problem(silent, 413)
    assert "1 MiB" in problem(client.post(f"{API}/sql", json={"query": "x" * 2 * MEBIBYTE}), 413)


def test_sql_is_served_and_anything_but_a_select_is_refused(client: TestClient) -> None:
    store: Store = client.app.state.services.store  # type: ignore[attr-defined]
    store.put_answer("k", answers.told())
    query = "SELECT label1, label2, value FROM answer_values WHERE measure = 'expert_load' AND isnan(value)"
    body = client.post(f"{API}/sql", json={"query": query}).json()
    assert body["columns"] == ["label1", "label2", "value"] and body["rows"] == [["0", "1", "NaN"]]
    assert body["truncated"] is False and body["seconds"] >= 0
    assert "this is DROP" in problem(client.post(f"{API}/sql", json={"query": "DROP TABLE answers"}), 422)


def test_the_service_says_where_it_is_and_gives_everything_back(settings: Settings, tmp_path: Path) -> None:
    from dataclasses import replace

    runner = Idle()
    with TestClient(create_app(replace(settings, store=tmp_path), runner)):
        found = serving(tmp_path)
        assert found is not None and found.url == "http://127.0.0.1:8123"
    assert runner.closed and serving(tmp_path) is None
    Store.open(tmp_path).close()


def test_the_interface_is_described_without_outside_pages(client: TestClient) -> None:
    text = client.get(f"{API}/openapi.json").text
    paths = json.loads(text)["paths"]
    assert {f"{API}/health", f"{API}/checkpoints", f"{API}/prompts", f"{API}/sql"} <= set(paths)


def test_making_the_app_opens_nothing(settings: Settings, tmp_path: Path) -> None:
    from dataclasses import replace

    assert isinstance(create_app(replace(settings, store=tmp_path / "untouched")), FastAPI)
    assert not (tmp_path / "untouched").exists()
