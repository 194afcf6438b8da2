"""Jobs: seen, cancelled, outlived; and short questions that do not wait for long ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from backend.jobs import STOPPED, Jobs
from tests.backend import tiny_olmoe
from tests.backend.live import Live

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def long_set(live: Live) -> str:
    """Prompts for minutes. A cancelled job keeps its shards, so the next test goes on where this one stopped."""
    return live.add(tiny_olmoe.prompts(4000, "long", length=400, start=10_000))


@pytest.fixture
def long_job(live: Live, long_set: str) -> Iterator[str]:
    """A job under way, with more to do than the test takes; cancelled at its end."""
    job = live.ask("expert_load", long_set).json()["job"]
    live.until(job, lambda now: " tokens" in now["stage"])
    yield job
    live.http.delete(f"/jobs/{job}")
    live.until(job, lambda now: live.runner.status == "idle")


def test_a_job_streams_its_stages_to_the_end_and_replays_the_last(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(64, "stream", length=200, start=900))
    job = live.ask("expert_load", words).json()["job"]
    events = live.events(job)
    ids = [number for number, _, _ in events]
    assert ids == sorted(set(ids))
    assert {name for _, name, _ in events[:-1]} <= {"progress"} and events[-1][1] == "done"
    stages = [about["stage"] for _, _, about in events]
    assert any(" tokens" in stage and stage.startswith("tiny · ") for stage in stages)
    fractions = [about["fraction"] for _, _, about in events]
    assert fractions == sorted(fractions)
    [again] = live.events(job, {"last-event-id": str(ids[0])})
    assert again == events[-1]


def test_a_job_says_how_many_tokens_a_model_ran_for_it_and_none_for_a_turned_knob(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "turned", length=60, start=700))
    first = live.ended(live.ask("load_violation", words).json()["job"])
    turned = live.ended(live.ask("load_violation", words, knobs={"count": "served"}).json()["job"])
    assert first["tokens"] > 0 == turned["tokens"]


def test_the_same_question_asked_twice_is_one_job(live: Live, long_job: str, long_set: str) -> None:
    assert live.ask("expert_load", long_set).json()["job"] == long_job


def test_a_cancelled_job_stops_between_batches_and_keeps_what_it_has(live: Live, long_job: str, long_set: str) -> None:
    shards = len(live.passes()[-1].shards)
    done = live.until(long_job, lambda now: now["fraction"] > 3 / shards)["fraction"]
    assert live.http.delete(f"/jobs/{long_job}").json()["state"] == "cancelled"
    live.until(long_job, lambda now: live.runner.status == "idle")
    assert live.job(long_job)["state"] == "cancelled" and done < 1
    again = live.ask("expert_load", long_set).json()["job"]
    live.until(again, lambda now: " tokens" in now["stage"])
    assert 0 < len(live.passes()[-1].shards) <= shards - 2
    live.http.delete(f"/jobs/{again}")


@pytest.mark.alone
def test_answers_that_need_no_pass_come_within_a_second_while_a_job_runs(live: Live, long_set: str) -> None:
    """Sets that are beginnings of one another share their shards, so each is a new question on stored states."""
    sets = [live.add(tiny_olmoe.prompts(count, f"quick {count}", start=1000)) for count in (80, 64, 48, 32)]
    live.answer("expert_load", sets[0])
    job = live.ask("expert_load", long_set).json()["job"]
    live.until(job, lambda now: " tokens" in now["stage"])
    seconds = []
    for measure in ("load_violation", "load_entropy", "signature_similarity", "signature_effect", "coactivation"):
        for words in sets * 2:  # the second time from the store
            start = time.monotonic()
            reply = live.ask(measure, words, wait=20)
            seconds.append(time.monotonic() - start)
            assert reply.status_code == 200, reply.text
    resident = []  # weights lie in the worker that runs the job: these wait for the batch it is at
    for measure in ("router_cosine", "router_spectrum", "router_orthogonality"):
        start = time.monotonic()
        reply = live.ask(measure, sets[0], wait=20)
        resident.append(time.monotonic() - start)
        assert reply.status_code == 200, reply.text
    assert max(resident) < 1.0, resident
    assert live.job(job)["state"] == "running"
    live.http.delete(f"/jobs/{job}")
    assert np.quantile(seconds, 0.95) < 1.0, sorted(seconds)


def test_a_short_pass_overtakes_a_long_one(live: Live, long_job: str) -> None:
    words = live.add(tiny_olmoe.prompts(4, "short pass", start=1100))
    live.answer("expert_load", words)
    assert live.job(long_job)["state"] == "running"


def test_a_killed_worker_is_a_failed_job_and_no_more(live: Live, long_job: str) -> None:
    pid = live.runner.worker("model")
    assert pid
    os.kill(pid, signal.SIGKILL)
    job = live.ended(long_job)
    assert job["state"] == "failed"
    assert "The worker was killed (SIGKILL" in job["message"] and "Ask again" in job["message"]
    assert live.http.get("/health").json()["status"] == "ok"
    words = live.add(tiny_olmoe.prompts(4, f"after {job['id']}", start=1200))
    live.answer("expert_load", words)
    assert live.runner.worker("model") not in (None, pid)
    again = live.ask("expert_load", job["prompts"]).json()["job"]
    assert again != long_job
    live.until(again, lambda now: " tokens" in now["stage"])
    live.http.delete(f"/jobs/{again}")


def test_a_refusal_inside_the_worker_is_the_jobs_sentence(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(4, "templated", start=1300))
    reply = live.ask("expert_load", words, capture={"chat_template": True}, wait=20)
    assert reply.status_code == 422
    assert "chat template" in reply.json()["detail"]


def test_jobs_under_way_at_a_restart_say_that_the_service_stopped(live: Live) -> None:
    job = live.http.get("/jobs").json()["jobs"][0] | {"id": "left-over", "state": "running", "message": None}
    live.services.store.save_job(job)
    Jobs(live.services.answering, live.services.store)
    found = live.job("left-over")
    assert (found["state"], found["message"]) == ("failed", STOPPED)


def test_a_slow_map_keeps_out_of_the_lane_of_short_questions(live: Live) -> None:
    """A cancelled map ends its worker, since a fit cannot stop half way."""
    words = live.add(tiny_olmoe.prompts(20, "mapped", start=1400))
    live.answer("expert_load", words)
    quick = live.runner.worker("quick")
    job = live.ask("signature_embedding", words, knobs={"method": "umap"}).json()["job"]
    live.until(job, lambda now: now["state"] == "running")
    assert live.ask("load_entropy", words, wait=20).status_code == 200
    live.http.delete(f"/jobs/{job}")
    live.until(job, lambda now: live.runner.worker("slow") is None)
    assert live.runner.worker("quick") == quick and live.runner.status == "idle"


def test_an_unknown_job_is_not_found(live: Live) -> None:
    for reply in (
        live.http.get("/jobs/nothing"),
        live.http.get("/jobs/nothing/events"),
        live.http.delete("/jobs/nothing"),
    ):
        assert reply.status_code == 404
        assert reply.json()["detail"] == "There is no job 'nothing'."
