"""An imported trace answers what a capture answers, to the last bit, and refuses by name what it cannot know."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from analysis.measure import Measure, measures
from analysis.result import Interval, Null, Result
from analysis.slots import SLOTS
from analysis.statistic import statistics
from backend.cli import main
from backend.errors import Refusal
from backend.prompts import PromptSet
from backend.question import ask
from backend.runners.failures import TaskFailed
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.inline import InlineRunner
from tests.backend.live import Live
from tests.backend.trace_files import CHOSEN, Bench, bench, rows, written

pytestmark = pytest.mark.slow

MODELS = ("tiny", "other")
LOADS = [[1.5, 0.5, 1.0, 1.0], [0.0, 2.0, 2.0, 0.0]]
"""Of CHOSEN, by hand."""
OF_ROUTES = {"prompt_counts", "coactivation_counts", "layer_transitions", "token_routes"}
ANSWERED = sorted(name for name, m in measures().items() if m.statistics and set(m.reads) <= OF_ROUTES)
REFUSED = sorted(set(measures()) - set(ANSWERED))
UNKNOWN = {("vocabulary_specialisation", "id_of", "predicted")}
"""What no file of routes holds: the ids that the model predicted."""


@dataclass(frozen=True)
class Pair:
    """A store with two models and their own routes, exported and imported again."""

    bench: Bench
    words: PromptSet


@pytest.fixture(scope="module")
def pair(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    here = tmp_path_factory.mktemp("pair")
    settings = Settings(data=here / "data", store=here / "store", extra_roots=(tiny_models,))
    words = tiny_olmoe.prompts(40, "words", length=30)
    with bench(settings) as opened:
        opened.services.store.add_prompt_set(words)
    with pytest.MonkeyPatch.context() as patch:
        for model, ending in zip(MODELS, ("parquet", "jsonl"), strict=True):
            out = str(here / f"{model}.{ending}")
            command(patch, settings, "export", "routes", "--checkpoint", model, "--prompts", "words", "--out", out)
            more = ["--experts", "4"] if ending == "jsonl" else []
            command(patch, settings, "import", out, "--as", f"traced-{model}", "--prompts", "words", *more)
    with bench(settings) as opened:
        yield Pair(opened, words)


def command(patch: pytest.MonkeyPatch, settings: Settings, *words: str, code: int = 0) -> None:
    """The command line in this process, and how it ends."""
    patch.setenv("MOE_GEOMETRY_DATA", str(settings.data))
    patch.setenv("MOE_GEOMETRY_STORE", str(settings.store))
    patch.setenv("MOE_GEOMETRY_ROOTS", ":".join(map(str, settings.extra_roots)))
    patch.setattr("backend.cli.local.LocalRunner", lambda store, *_, **__: InlineRunner(store))
    patch.setattr(sys, "argv", ["moe-geometry", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code, words


def sides(measure: Measure, prefix: str = "") -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for name in (MODELS if measure.sides else MODELS[:1]))


def settled(measure: Measure) -> Iterator[dict]:
    """The defaults, and every other choice of every knob but those that take long or no trace can know."""
    yield {}
    for knob in measure.knobs:
        for choice in knob.choices:
            long = measure.is_slow({knob.name: choice}) and not measure.slow
            if choice != knob.default and not long and (measure.name, knob.name, choice) not in UNKNOWN:
                yield {knob.name: choice}


def numbers(result: Result) -> list[np.ndarray]:
    found = [result.values]
    if isinstance(result.null, Null):
        found += [result.null.mean, result.null.low, result.null.high]
    if isinstance(result.interval, Interval):
        found += [result.interval.low, result.interval.high]
    return found


@pytest.mark.parametrize("name", ANSWERED)
def test_a_trace_of_a_capture_answers_as_the_capture(pair: Pair, name: str, one_thread: None) -> None:
    measure = measures()[name]
    for knobs in settled(measure):
        captured = pair.bench.ask(name, *sides(measure), prompts="words", **knobs)
        traced = pair.bench.ask(name, *sides(measure, "traced-"), prompts="words", **knobs)
        assert len(numbers(captured)) == len(numbers(traced)), knobs
        for a, b in zip(numbers(captured), numbers(traced), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name} {knobs}")
        facts = {n: v.removeprefix("traced-") if isinstance(v, str) else v for n, v in traced.facts.items()}
        assert (facts, traced.tokens, traced.prompts) == (captured.facts, captured.tokens, captured.prompts)


def test_both_files_of_one_export_are_one_trace_and_no_model_is_loaded_for_it(pair: Pair) -> None:
    found = {c.id: c for c in pair.bench.services.checkpoints.list()}
    assert found["traced-tiny"].trace == found["traced-other"].trace == "routes"
    before = len(pair.bench.runner.log)
    fresh = replace(pair.words, prompts=pair.words.prompts[:16])
    asked = ask("expert_load", [found["traced-tiny"]], replace(fresh, name="first"))
    assert pair.bench.services.answering.answer(asked).result.prompts == 16
    assert [getattr(task, "checkpoint", None) for task in pair.bench.runner.log[before:]] == [None]


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_measure_is_refused_by_name_with_what_it_needs(pair: Pair, name: str) -> None:
    measure = measures()[name]
    with pytest.raises(Refusal) as refused:
        pair.bench.ask(name, *sides(measure, "traced-"), prompts="words")
    said = str(refused.value)
    weights = any(read in SLOTS and not SLOTS[read].optional for read in measure.reads)
    texts = "token_class_counts" in measure.reads
    needs = "the model's weights" if weights else "the text of each token" if texts else "the model, run on the prompts"
    assert said.startswith(f"{name} needs {needs} (") and "traced-tiny is an imported trace (routes)" in said


def test_ids_that_no_route_carries_are_asked_for_in_vain(pair: Pair) -> None:
    with pytest.raises(TaskFailed, match="these routes carry no ids of predicted tokens"):
        pair.bench.ask("vocabulary_specialisation", "traced-tiny", prompts="words", id_of="predicted")


def test_routes_without_weights_and_ids_say_what_they_lack(pair: Pair, tmp_path: Path) -> None:
    bare = {f"p{n}": [*CHOSEN[n % 3 :], *CHOSEN[:1]] for n in range(12)}
    content = [row | {"category": "ab"[int(row["prompt"][1:]) % 2]} for row in rows(bare)]
    pair.bench.add(written(tmp_path / "bare.jsonl", content), "bare", experts=4)
    with pytest.raises(TaskFailed, match="carry no combine weights; ask for counts"):
        pair.bench.ask("signature_similarity", "bare", weighting="weight")
    with pytest.raises(TaskFailed, match="carry no token ids"):
        pair.bench.ask("token_context_split", "bare")
    found = pair.bench.ask("signature_classifier", "bare", folds=2)
    assert np.isfinite(found.values) and "from its token ids alone" not in found.facts
    assert any("no token ids" in caveat for caveat in found.caveats)
    assert any("no combine weights" in caveat for caveat in pair.bench.ask("coactivation", "bare").caveats)


def test_counts_decide_loads_and_signatures_alone(pair: Pair, root: Path) -> None:
    kept = pair.bench.add(root / "data" / "traces" / "olmoe-1b-7b-0924.json", "counted")
    assert kept.statistics == ("prompt_counts",)
    with pytest.raises(Refusal, match=r"coactivation needs each token's choices \(coactivation_counts\); counted is"):
        pair.bench.ask("coactivation", "counted")
    assert all(statistics()[name].needs == {"routes"} for name in OF_ROUTES)


def test_prompts_without_texts_are_run_through_no_model_and_compared_with_no_other_import(
    pair: Pair, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.jsonl", rows({"p": CHOSEN}))
    for name in ("first-import", "second-import"):
        pair.bench.add(file, name, experts=4)
    with pytest.raises(Refusal, match=r"no texts, and tiny cannot be run on them"):
        pair.bench.ask("expert_load", "tiny", prompts="first-import")
    with pytest.raises(Refusal, match=r"no texts, and second-import was imported with other prompts"):
        pair.bench.ask("load_difference", "first-import", "second-import", prompts="first-import")
    pair.bench.add(file, "third-import", pair.bench.services.prompts.find("first-import"), experts=4)
    same = pair.bench.ask("load_difference", "first-import", "third-import", prompts="first-import")
    assert not same.values.any()
    with pytest.raises(TaskFailed, match="third-import is an imported trace and has no route of the prompt 'p0'"):
        pair.bench.ask("expert_load", "third-import", prompts="words")


def test_a_name_is_given_once_and_a_forgotten_trace_may_come_back(pair: Pair, tmp_path: Path) -> None:
    file, other = written(tmp_path / "a.npy", np.array([[1, 3]])), written(tmp_path / "b.npy", np.array([[2, 2]]))
    first = pair.bench.add(file, "once", k=1)
    assert pair.bench.add(file, "once", k=1).fingerprint == first.fingerprint
    with pytest.raises(Refusal, match="There is a checkpoint 'once' already"):
        pair.bench.add(other, "once", k=1)
    with pytest.raises(Refusal, match="There is a prompt set 'words' already"):
        pair.bench.add(other, "words", k=1)
    pair.bench.services.prompts.delete("once")
    pair.bench.add(file, "once", k=1)
    assert pair.bench.services.prompts.find("once").textless
    pair.bench.services.checkpoints.delete("once")
    assert pair.bench.add(file, "once", k=1).id == "once"
    assert (pair.bench.services.settings.store / first.folder).is_file()


def test_a_trace_whose_file_is_gone_or_changed_is_no_answer(pair: Pair, tmp_path: Path) -> None:
    kept = pair.bench.add(written(tmp_path / "a.npy", np.array([[5, 3, 2]])), "lost", k=1)
    file = pair.bench.services.settings.store / kept.folder
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TaskFailed, match="What the store kept of lost is missing or damaged; import it again"):
        pair.bench.ask("expert_load", "lost")
    file.unlink()
    with pytest.raises(Refusal, match="The store has lost the trace of lost; import it again"):
        pair.bench.ask("expert_load", "lost")
    pair.bench.services.checkpoints.delete("lost")


def test_nothing_is_generated_behind_a_trace(pair: Pair) -> None:
    from backend.capture import CaptureOptions

    trace = pair.bench.services.checkpoints.find("traced-tiny")
    with pytest.raises(Refusal, match="none are generated or left out and no chat template is applied"):
        ask("expert_load", [trace], pair.words, capture=CaptureOptions(generate=2))
    with pytest.raises(Refusal, match="none are generated or left out"):
        ask("expert_load", [trace], pair.words, capture=CaptureOptions(first_token=False))


def test_a_running_backend_takes_the_file_and_its_worker_answers(
    live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(written(tmp_path / "routes.jsonl", rows({"p": CHOSEN})))
    with pytest.MonkeyPatch.context() as patch:
        command(patch, live.settings, "import", file, "--as", "through-http", "--experts", "4", "--k", "2")
        told = capsys.readouterr().out
        assert told.startswith(
            "through-http: routes, 2 layers of 4 experts, 2 a token; ask it on the prompts through-http"
        )
        command(patch, live.settings, "import", file, "--as", "open", code=2)
        assert capsys.readouterr().err.endswith("give --experts.\n")
        command(patch, live.settings, "import", str(tmp_path), "--as", "folder", code=2)
        assert "is a folder, and the backend at http" in capsys.readouterr().err
    found = live.answer("expert_load", "through-http", ("through-http",))
    assert found["values"] == LOADS and found["tokens"] == 4


def test_an_upload_becomes_a_checkpoint_and_what_it_leaves_open_is_asked(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    from backend.app import create_app

    settings = Settings(data=tmp_path / "data", store=tmp_path / "store", upload_cap=1 << 16)
    file = written(tmp_path / "routes.jsonl", rows({"p": CHOSEN})).read_bytes()
    with TestClient(
        create_app(settings, InlineRunner(settings.store)), base_url="http://127.0.0.1:8000/api/v1"
    ) as http:

        def send(name: str, content: bytes = file, **said: str):
            return http.post("/traces", files={"file": (name, content)}, data={"name": "sent"} | said)

        open_still = send("routes.jsonl").json()
        assert open_still["detail"].endswith("give --experts.") and open_still["asks"] == "experts"
        matrix = json.dumps([[3, 1, 2, 2], [0, 4, 4, 0]]).encode()
        assert send("counts.json", matrix).json()["asks"] == "k"
        one_a_token = written(tmp_path / "v.json", {"prompt_routed_experts": [[[0], [1]], [[0], [2]]]}).read_bytes()
        assert send("v.json", one_a_token, experts="4", format="vllm").json()["asks"] == "layers"
        wrong = send("bad.jsonl", file.replace(b'"expert": 3', b'"expert": "x"', 1), experts="4").json()
        assert wrong["detail"].startswith("bad.jsonl, row 5: expert is 'x'") and "asks" not in wrong
        reply = send("../up/routes.jsonl", experts="4")
        assert reply.status_code == 201 and reply.json()["trace"] == "routes" and "folder" not in reply.json()
        assert any("counts as having served" in note for note in reply.json()["notes"])
        body = {"measure": "expert_load", "checkpoints": ["sent"], "prompts": "sent", "wait": 20}
        assert http.post("/questions", json=body).json()["values"] == LOADS
        assert send("routes.pt").status_code == 422 and send("a.jsonl", b"x" * (1 << 17)).status_code == 413
        assert send("a.jsonl", experts="0").status_code == 422
        assert not list(settings.store.glob("import-*"))
        known = http.get("/traces/formats").json()["formats"]
        assert {each["name"] for each in known} >= {"counts", "imatrix", "vllm"}
        assert http.delete("/checkpoints", params={"id": "sent"}).status_code == 204
