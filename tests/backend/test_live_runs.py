"""A recorder and a real backend: what is recorded arrives, merges and is told; what is no record is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from backend.recorder import GeometryRecorder
from backend.recorder.record import file_name
from tests.backend import tiny_moe
from tests.backend.live import Live
from tests.backend.test_recorder import ids, loads_of

pytestmark = pytest.mark.slow


def record(folder: Path, to: str | None, steps: int = 2, geometry: bool = True) -> torch.Tensor:
    """Train-mode passes of a tiny model; the counts of the last."""
    torch.manual_seed(0)
    model = tiny_moe.olmoe().train()
    recorder = GeometryRecorder(model, every=1, folder=folder, to=to, geometry=geometry)
    for seed in range(steps):
        model(input_ids=ids(seed))
        recorder.step()
    recorder.close(30)
    return loads_of(model, ids(steps - 1))


def address(live: Live) -> str:
    return str(live.http.base_url).split("/api/")[0]


def test_a_recorded_run_arrives_and_is_told_step_by_step(live: Live, tmp_path: Path) -> None:
    counts = record(tmp_path / "followed", address(live))
    listed = {run["name"]: run for run in live.http.get("/live").json()["runs"]}
    assert listed["followed"]["last_step"] == 2 and listed["followed"]["experts"] == tiny_moe.EXPERTS
    told = live.http.get("/live/followed").json()
    assert [point["step"] for point in told["points"]] == [1, 2]
    load = torch.tensor(told["points"][1]["load"])
    torch.testing.assert_close(load, counts / counts.sum(-1, keepdim=True) * tiny_moe.EXPERTS, atol=1e-6, rtol=0)
    assert set(told["points"][1]["trainers"]) == set(told["trainers"])
    named = " ".join((*told["trainers"], *told["untold"]))
    for trainer in (
        "OLMo-core",
        "Megatron-LM",
        "Megatron forks",
        "NeMo Automodel",
        "TRL",
        "torchtitan",
        "prime-rl",
        "Fast-LLM",
    ):
        assert trainer in named
    assert live.http.delete("/live/followed").status_code == 204
    assert live.http.get("/live/followed").status_code == 404


def test_a_folder_among_the_runs_of_the_data_is_told_without_being_sent(live: Live) -> None:
    record(live.settings.data / "runs" / "at-home", None, geometry=False)
    assert len(live.http.get("/live/at-home").json()["points"]) == 2
    assert live.http.delete("/live/at-home").status_code == 404


def test_a_second_run_of_a_name_waits_until_the_first_is_removed(
    live: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "a" / "twice", address(live), steps=1)
    kept = live.http.get("/live/twice").json()["points"]
    (tmp_path / "b").mkdir()
    record(tmp_path / "b" / "twice", address(live), steps=3)
    assert live.http.get("/live/twice").json()["points"] == kept
    assert "is of another run than twice's records here. Give the new run's folder another name" in caplog.text
    about = json.loads((tmp_path / "b" / "twice" / "run.json").read_text()) | {"experts": 3}
    reply = live.http.put("/live/twice/run.json", content=json.dumps(about).encode())
    assert reply.status_code == 409 and "(experts 8, not 3)" in reply.json()["detail"]
    live.http.delete("/live/twice")
    recorder = GeometryRecorder(tiny_moe.olmoe(), folder=tmp_path / "b" / "twice", to=address(live), every=1, first=3)
    recorder.close(30)
    assert [point["step"] for point in live.http.get("/live/twice").json()["points"]] == [1, 2, 3]


def test_what_is_no_record_of_the_run_is_refused_in_a_sentence(live: Live, tmp_path: Path) -> None:
    record(tmp_path / "strict", address(live), steps=1)
    put = lambda path, data: live.http.put(  # noqa: E731
        f"/live/{path}", content=data, headers={"content-type": "application/octet-stream"}
    )
    good = (tmp_path / "strict" / file_name(1, 0)).read_bytes()
    for path, data, sentence in (
        ("strict/notes.txt", b"x", "no name of a record"),
        (f"strict/{file_name(2, 0)}", good[:-9], "no whole safetensors file"),
        (f"strict/{file_name(2, 0)}", save(load(good), {"moe-geometry": "[]"}), "does not say which run it is of"),
        (f"unheard/{file_name(1, 0)}", good, "send its run.json first"),
        ("strict/run.json", b"{}", "must be an object with"),
        ("-x/run.json", b"{}", "cannot name a run"),
    ):
        reply = put(path, data)
        assert reply.status_code in (400, 404, 422) and sentence in reply.json()["detail"], (path, reply.text)
    assert len(live.http.get("/live/strict").json()["points"]) == 1
    other = live.http.get("/live/strict").json() | {"experts": 3}
    assert put("strict-3/run.json", json.dumps(other).encode()).status_code == 204
    reply = put(f"strict-3/{file_name(1, 0)}", good)
    assert "Another model needs a run of another name" in reply.json()["detail"]
