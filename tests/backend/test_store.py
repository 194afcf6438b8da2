"""The store gives back what it was given, to threads and after a restart, and loses nothing that it acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.result import Axis, Reason, Result
from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State, get
from backend.errors import Conflict
from backend.prompts import Prompt, PromptSet
from backend.store import Store, StoreBusy, rows, serving
from tests.backend import answers

pytestmark = pytest.mark.slow

SHAPE = Shape(("1", "3"), experts=4, top_k=2, model=8, hidden=8)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


def counts(seed: int = 0) -> State:
    """A random state of `prompt_counts` over two prompts."""
    prompts = Prompts(("a", "b"), (text_digest("x"), text_digest("y")), ("code", "story"))
    generator = torch.Generator().manual_seed(seed)
    specs = get("prompt_counts").arrays
    arrays = {n: torch.rand(s.size(SHAPE, 2), generator=generator).mul(9).to(s.dtype) for n, s in specs.items()}
    return State("prompt_counts", SHAPE, prompts, arrays)


def same_state(a: State, b: State) -> bool:
    arrays = a.arrays.keys() == b.arrays.keys() and all(torch.equal(a[n], b[n]) for n in a.arrays)
    return arrays and (a.statistic, a.shape, a.prompts) == (b.statistic, b.shape, b.prompts)


def test_a_state_comes_back_whole_after_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put_state("k", "prompt_counts", {"checkpoint": "free/step-00020"}, counts())
    with Store.open(tmp_path) as store:
        back = store.get_state("k")
        assert back is not None and same_state(back, counts())
        assert store.has_state("k") and not store.has_state("other")
        assert store.get_state("other") is None


def test_an_answer_comes_back_whole_after_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.put_answer("k", answers.told())
    with Store.open(tmp_path) as store:
        back = store.get_answer("k")
        assert back is not None and answers.same(back.result, answers.load())
        assert back.provenance == answers.provenance()
        assert store.get_answer("other") is None


def test_the_newest_answers_are_listed_first(store: Store) -> None:
    store.put_answer("old", answers.told(created="2026-01-01"))
    followed = [{"id": f"{run}/step-1", "fingerprint": run} for run in "abc"]
    store.put_answer("new", answers.told(created="2026-02-01", checkpoints=followed, prompts=None))
    listed = [(a["key"], a["checkpoints"], a["prompts"]) for a in store.answers()]
    assert listed == [("new", ["a/step-1", "b/step-1", "c/step-1"], None), ("old", ["free/step-02000"], "four-tasks")]


def test_each_checkpoint_of_a_trajectory_finds_its_answers(store: Store) -> None:
    """Also the third, which no column of `answers` has room for."""
    steps = [{"id": f"a/step-{n}", "fingerprint": str(n)} for n in range(4)]
    store.put_answer("long", answers.told(checkpoints=steps))
    store.put_answer("short", answers.told(checkpoints=steps[2:]))
    query = "SELECT key, position FROM answer_checkpoints c JOIN answers USING (key) WHERE c.checkpoint ="
    found = store.sql(f"{query} 'a/step-2' ORDER BY key").rows
    assert found == (("long", 2), ("short", 0))
    assert store.sql(f"{query} 'a/step-9'").rows == ()


def test_an_answer_put_twice_has_its_rows_once(store: Store) -> None:
    for _ in range(2):
        store.put_answer("k", answers.told())
    assert store.sql("SELECT * FROM answer_checkpoints").rows == (("k", 0, "free/step-02000"),)
    assert store.sql("SELECT count(*) FROM answer_values").rows == ((6,),)
    assert store.sql("SELECT count(*) FROM answers").rows == ((1,),)


def test_answers_are_rows_with_names_for_every_cell(store: Store) -> None:
    store.put_answer("k", answers.told())
    query = (
        "SELECT checkpoint, prompts, axis1, label1, axis2, label2, axis3, value, null_low FROM answer_values "
        "WHERE measure = 'expert_load' AND label1 = '0' AND label2 = '2'"
    )
    expected = ("free/step-02000", "four-tasks", "layer", "0", "expert", "2", None, 0.1 + 0.2, 0.9)
    assert store.sql(query).rows == (expected,)
    assert store.sql("SELECT load FROM loads WHERE expert = '2' AND layer = '0'").rows == ((0.1 + 0.2,),)


def test_coordinates_of_prompts_and_of_experts_are_rows_of_a_view(store: Store) -> None:
    axes = (Axis("prompt", ("p1", "p2")), Axis("coordinate", ("PC 1", "PC 2")))
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    result = Result("signature_embedding", values, axes, "", Reason("none"), Reason("none"))
    store.put_answer("k", answers.told(result))
    query = "SELECT value FROM embeddings WHERE kind = 'prompt' AND label = 'p2' AND coordinate = 'PC 1'"
    assert store.sql(query).rows == ((3.0,),)
    experts = (Axis("expert", ("E0", "E1")), axes[1])
    store.put_answer("e", answers.told(Result("expert_embedding", values, experts, "", Reason("none"), Reason("none"))))
    query = "SELECT label, value FROM embeddings WHERE kind = 'expert' AND coordinate = 'PC 2' ORDER BY label"
    assert store.sql(query).rows == (("E0", 2.0), ("E1", 4.0))


def test_the_paths_of_experts_are_rows_of_a_view(store: Store) -> None:
    axes = (Axis("layer", ("3",)), Axis("step", ("a/step-0", "a/step-2")), Axis("expert", ("E0", "E1")))
    axes = (*axes, Axis("coordinate", ("PC 1", "PC 2")))
    result = Result("centroid_map", np.arange(8.0).reshape(1, 2, 2, 2), axes, "", Reason("none"), Reason("none"))
    store.put_answer("k", answers.told(result))
    query = "SELECT coordinate, value FROM trajectories WHERE layer = '3' AND step = 'a/step-2' AND expert = 'E0'"
    assert store.sql(f"{query} ORDER BY coordinate").rows == (("PC 1", 4.0), ("PC 2", 5.0))


def test_an_answer_of_too_many_cells_is_kept_as_a_file_alone(store: Store) -> None:
    big = np.arange(200_001.0).reshape(1, -1)
    store.put_answer("k", answers.told(answers.load(big)))
    back = store.get_answer("k")
    assert back is not None and np.array_equal(back.result.values, big)
    assert store.sql("SELECT count(*) FROM answer_values").rows == ((0,),)


def test_signatures_are_rows(store: Store) -> None:
    state = counts()
    store.put_state("k", "prompt_counts", {"checkpoint": "free/step-00020", "fingerprint": "f"}, state)
    query = (
        "SELECT selected, served, weight, tokens FROM signatures WHERE prompt = 'b' AND layer = '3' AND expert = 2 "
        "AND checkpoint = 'free/step-00020'"
    )
    [row] = store.sql(query).rows
    cell = (1, 1, 2)
    assert row == (*(state[n][cell].item() for n in ("selected", "served", "weights")), state["tokens"][1].item())


def test_signatures_of_as_many_experts_as_large_models_have_are_rows_up_to_a_stated_number(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Shape(tuple(map(str, range(10))), experts=256, top_k=8, model=8, hidden=4)
    names = tuple(f"p{n}" for n in range(100))
    prompts = Prompts(names, tuple(map(text_digest, names)), ("code",) * 100)
    arrays = {n: torch.ones(s.size(wide, 100), dtype=s.dtype) for n, s in get("prompt_counts").arrays.items()}
    state = State("prompt_counts", wide, prompts, arrays)
    meta = {"checkpoint": "wide", "fingerprint": "f"}
    store.put_state("k", "prompt_counts", meta, state)
    assert store.sql("SELECT count(*), sum(selected) FROM signatures").rows == ((256_000, 256_000),)
    monkeypatch.setattr(rows, "MOST_SIGNATURE_CELLS", 255_999)
    store.put_state("k", "prompt_counts", meta, state)
    assert store.sql("SELECT count(*) FROM signatures").rows == ((0,),)


def test_arrays_are_named_by_their_content(store: Store) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = store.arrays.put_array(array)
    assert store.arrays.put_array(array.copy()) == file
    for _ in range(2):
        store.put_answer("k", answers.told(), {"gram": file})
    back = store.answer_array("k", "gram")
    assert back is not None and back.dtype == np.float32 and np.array_equal(back, array)
    assert not back.flags.writeable
    assert store.answer_array("k", "bases") is None and store.answer_array("other", "gram") is None
    listed = "SELECT key, measure, checkpoint, prompts, name, dtype, shape FROM arrays"
    about = ("k", "expert_load", "free/step-02000", "four-tasks", "gram", "float32", [3, 4])
    assert store.sql(listed).rows == (about,)
    store.put_answer("k", answers.told())
    assert store.answer_array("k", "gram") is None, "an answer made anew names what it was made from anew"


def test_a_damaged_file_is_no_answer_and_can_be_put_again(store: Store) -> None:
    store.put_answer("k", answers.told())
    store.put_state("s", "prompt_counts", {}, counts())
    for path in (store.folder / "arrays").rglob("*.*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert store.get_answer("k") is None and store.get_state("s") is None
    store.put_answer("k", answers.told())
    assert store.get_answer("k") is not None


def test_jobs_keep_their_last_word_newest_first(store: Store) -> None:
    old = {"id": "1", "key": "k", "measure": "m", "state": "waiting", "created": "2026-01-01", "fraction": 0.0}
    store.save_job(old)
    store.save_job(old | {"id": "2", "created": "2026-01-02"})
    store.save_job(old | {"state": "done", "fraction": 1.0})
    assert [(j["id"], j["state"]) for j in store.jobs()] == [("2", "waiting"), ("1", "done")]
    assert store.job("1") == old | {"state": "done", "fraction": 1.0}
    assert store.job("3") is None


def test_prompt_sets_come_back_in_order_and_a_name_is_given_once(store: Store) -> None:
    rows = tuple(Prompt(f"p{n}", f"text {n} ä", "code" if n % 2 else "story") for n in range(2500))
    prompts = PromptSet("mine", rows, shipped=False)
    store.add_prompt_set(prompts)
    assert store.prompt_set("mine") == prompts
    assert store.prompt_sets() == [prompts.summary()]
    with pytest.raises(Conflict, match="'mine'"):
        store.add_prompt_set(prompts)
    assert store.delete_prompt_set("mine") and not store.delete_prompt_set("mine")
    assert store.prompt_set("mine") is None and store.prompt_sets() == []


def test_many_threads_write_and_read_at_once(store: Store) -> None:
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                store.put_answer(f"{number}-{turn}", answers.told())
                assert store.get_answer(f"{number}-{turn}") is not None
                store.save_job({"id": "shared", "state": "running", "created": "1", "fraction": turn})
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.sql("SELECT count(*) FROM answers").rows == ((30,),)


def test_a_second_process_is_told_who_holds_the_store(store: Store) -> None:
    script = "import sys; from pathlib import Path; from backend.store import Store; Store.open(Path(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(store.folder)], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"is in use by process {os.getpid()}" in done.stderr and StoreBusy.__name__ in done.stderr


KILLED = """
import sys
from pathlib import Path
from backend.store import Store
from tests.backend import answers
store = Store.open(Path(sys.argv[1]))
for number in range(10_000):
    store.put_answer(f"{number}", answers.told())
    print(number, flush=True)
"""


@pytest.mark.parametrize("wanted", [1, 7, 40])
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, root: Path, wanted: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(wanted)]
    child.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout.read().splitlines() if line]
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    with Store.open(tmp_path) as store:
        for number in acknowledged:
            back = store.get_answer(str(number))
            assert back is not None and answers.same(back.result, answers.load())
        whole = store.sql("SELECT key, count(*) FROM answer_values GROUP BY key HAVING count(*) != 6")
        assert whole.rows == ()


def test_the_address_stands_beside_the_store_while_it_is_served(tmp_path: Path) -> None:
    assert serving(tmp_path) is None
    with Store.open(tmp_path) as store:
        store.announce("http://127.0.0.1:8000")
        found = serving(tmp_path)
        assert found is not None and found.url == "http://127.0.0.1:8000"
    assert serving(tmp_path) is None


def test_the_address_of_a_process_that_is_gone_is_none(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    (tmp_path / "backend.json").write_text(f'{{"url": "http://127.0.0.1:1", "pid": {child.pid}}}')
    assert serving(tmp_path) is None
    (tmp_path / "backend.json").write_text("half a fi")
    assert serving(tmp_path) is None
