"""What an answer costs: nothing twice."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow.parquet
import pytest

from backend import wire
from backend.cli.door import Wanted, open_door
from backend.runners.messages import CaptureTask, Done, EvaluateTask
from tests.backend import tiny_olmoe
from tests.backend.live import Live

pytestmark = pytest.mark.slow


def test_the_same_question_is_answered_from_the_store_without_a_model(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "twice"))
    first = live.answer("expert_load", words)
    before = len(live.runner.log)
    reply = live.ask("expert_load", words)
    assert reply.status_code == 200
    assert reply.json() == first
    assert len(live.runner.log) == before
    assert live.http.get(f"/questions/{first['provenance']['key']}").json() == first


def test_what_a_worker_did_is_heard_to_its_end(live: Live) -> None:
    """Who stops at the result drops the task, and a dropped slow task takes its worker with it."""
    words = live.add(tiny_olmoe.prompts(20, "heard", start=7700))
    before = len(live.runner.log)
    live.answer("expert_load", words)
    log = list(live.runner.log)[before:]
    begun = [item.id for item in log if isinstance(item, CaptureTask | EvaluateTask)]
    assert len(begun) == 2 and [item.task for item in log if isinstance(item, Done)] == begun


def test_an_answer_says_where_it_comes_from(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "origin", length=31))
    answer = live.answer("expert_load", words)
    about = answer["provenance"]
    assert np.shape(answer["values"]) == (2, 4)
    assert about["checkpoints"][0]["id"] == "tiny" and about["device"] == "cpu" and about["seed"] == 0
    assert about["prompts"]["name"] == words and about["prompts"]["count"] == 20
    texts = tiny_olmoe.prompts(20, "origin", length=31).prompts
    assert about["tokens"] == answer["tokens"] == sum(len(p.text) for p in texts)
    assert set(about["versions"]) == {"moe-geometry", "torch", "transformers"}


def test_another_measure_knob_or_label_makes_no_pass(live: Live) -> None:
    live.answer("expert_load", live.add(tiny_olmoe.prompts(20, "once", start=100)))
    before = len(live.runner.log)
    live.answer("expert_load", "once", knobs={"count": "served"})
    live.answer("coactivation", "once")
    live.answer("load_violation", "once")
    assert not live.passes(before) and not live.loads(before)


def test_adding_prompts_runs_only_the_new_ones(live: Live) -> None:
    live.answer("expert_load", live.add(tiny_olmoe.prompts(32, "short list", start=200)))
    before = len(live.runner.log)
    longer = live.answer("expert_load", live.add(tiny_olmoe.prompts(40, "long list", start=200)))
    [task] = live.passes(before)
    assert [p.id for work in task.shards for p in work.prompts] == [f"p{n}" for n in range(232, 240)]
    assert longer["prompts"] == 40


def test_a_merged_answer_is_the_answer_of_all_prompts_at_once(live: Live) -> None:
    """Loads are means over (token, slot) pairs, so shards merge to the sum of their counts."""
    live.answer("expert_load", live.add(tiny_olmoe.prompts(40, "merged", start=300)))
    rows = live.services.store.sql(
        "select layer, expert, sum(selected) from signatures where prompt in "
        "(select id from prompts where prompt_set = 'merged') group by all order by layer, expert"
    ).rows
    counts = np.array([row[2] for row in rows], dtype=float).reshape(2, 4)
    values = np.array(live.answer("expert_load", "merged")["values"])
    np.testing.assert_allclose(values, counts / counts.mean(-1, keepdims=True), rtol=1e-12)


def test_a_comparison_goes_the_whole_way(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "both", start=400))
    a = np.array(live.answer("expert_load", words, ("tiny",))["values"])
    b = np.array(live.answer("expert_load", words, ("other",))["values"])
    difference = live.answer("load_difference", words, ("tiny", "other"))
    back = live.answer("load_difference", words, ("other", "tiny"))
    np.testing.assert_allclose(np.array(difference["values"]), -np.array(back["values"]), atol=1e-12)
    assert [c["id"] for c in difference["provenance"]["checkpoints"]] == ["tiny", "other"]
    assert np.abs(a - b).max() > 0


def test_questions_that_need_the_same_pass_share_it(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(48, "shared", length=200, start=500))
    before = len(live.runner.log)
    names = ("expert_load", "load_entropy", "load_violation", "signature_similarity", "coactivation")
    threads = [threading.Thread(target=live.answer, args=(name, words)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(live.passes(before)) == 1
    assert all(live.ask(name, words).status_code == 200 for name in names)


def test_a_measure_of_weights_runs_no_prompt(live: Live) -> None:
    before = len(live.runner.log)
    answer = live.answer("router_cosine", None, ("other",))
    assert not live.passes(before)
    assert answer["provenance"]["prompts"] is None and answer["tokens"] == 0


def test_the_first_pass_keeps_which_expert_every_token_took(live: Live) -> None:
    prompts = tiny_olmoe.prompts(3, "kept", start=600)
    live.answer("expert_load", live.add(prompts))
    [[about, path]] = live.services.store.sql(
        "select c.about, a.path from chunks c join artifacts a on a.digest = c.artifact where c.about like '%p600%'"
    ).rows
    rows = pyarrow.parquet.read_table(live.settings.store / path).to_pylist()
    assert len(rows) == sum(len(p.text) for p in prompts.prompts) * 2 * 2
    assert {row["expert"] for row in rows} <= {0, 1, 2, 3}
    text = prompts.prompts[1].text
    one = [row for row in rows if (row["prompt"], row["layer"], row["slot"]) == ("p601", "0", 0)]
    assert [text[row["start"] : row["end"]] for row in one] == list(text)
    assert '"tokens"' in about


def test_the_price_is_told_before_anything_is_begun(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "priced", length=100, start=700))
    before = len(live.runner.log)
    reply = live.ask("expert_load", words, only_stored=True)
    assert reply.status_code == 404
    assert reply.json()["cost"]["passes"] == 1
    assert reply.json()["cost"]["tokens"] == sum(
        len(p.text) // 4 for p in tiny_olmoe.prompts(20, length=100, start=700).prompts
    )
    assert len(live.runner.log) == before
    live.answer("expert_load", words)
    assert live.ask("expert_load", words, only_stored=True).status_code == 200


def test_the_same_answer_comes_as_arrow_and_as_files(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "formats", start=800))
    answer = live.answer("expert_load", words)
    key = answer["provenance"]["key"]
    arrow = live.http.get(f"/questions/{key}", headers={"accept": wire.ARROW_STREAM})
    told = wire.from_arrow(arrow.content)
    assert wire.to_json(told.result, told.provenance) == answer
    for kind in wire.FORMATS:
        assert live.http.get(f"/questions/{key}", params={"format": kind}).status_code == 200
    assert live.http.get(f"/questions/{key}", params={"format": "xls"}).status_code == 422


def test_a_damaged_state_is_told_and_made_anew(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(4, "damaged", start=1500))
    key = live.answer("expert_load", words)["provenance"]["key"]
    [[path]] = live.services.store.sql(
        "select a.path from states s join artifacts a on a.digest = s.artifact "
        "where s.statistic = 'coactivation_counts' and s.meta like '%p1500%'"
    ).rows
    (live.settings.store / path).write_bytes(b"not what it was")
    told = live.ask("coactivation", words, wait=20)
    assert told.status_code == 503 and "missing or damaged; ask again" in told.json()["detail"]
    assert live.answer("coactivation", words)["tokens"] > 0
    assert live.http.get(f"/questions/{key}").status_code == 200


def test_the_plan_is_the_price_that_a_question_not_asked_yet_is_answered_with(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(20, "planned", start=8800))
    cost = live.ask("expert_load", words, only_stored=True).json()["cost"]
    before = len(live.runner.log)
    with open_door(live.settings) as door:
        planned = door.plan(Wanted("expert_load", ["tiny"], words))
    assert {name: planned[name] for name in cost} == cost and not planned["answered"]
    assert (planned["held"], planned["dtype"], planned["passes"]) == ("resident", "float32", 1)
    assert len(live.runner.log) == before, "a plan begins nothing"


def test_two_ways_of_holding_a_checkpoint_are_asked_over_http(live: Live) -> None:
    words = live.add(tiny_olmoe.prompts(6, "held twice", start=9900))
    body = {"measure": "routing_agreement", "checkpoints": ["tiny", "tiny@bf16"], "prompts": words, "wait": 20}
    reply = live.http.post("/questions", json=body)
    assert reply.status_code in (200, 202), reply.text
    if reply.status_code == 202:
        assert live.ended(reply.json()["job"])["state"] == "done"
        reply = live.http.get(f"/questions/{reply.json()['key']}")
    about = reply.json()["provenance"]["checkpoints"]
    assert [(c["id"], c["precision"]) for c in about] == [("tiny", "float32"), ("tiny@bf16", "bfloat16")]
