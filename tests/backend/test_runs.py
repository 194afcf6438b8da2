"""A run from a folder of steps or from revisions of the hub: ordered, pinned, kept whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from backend.answer import Ticket
from backend.checkpoints import Checkpoints
from backend.cli.local import LocalDoor
from backend.errors import Conflict, Refusal
from backend.question import ask
from backend.routes.checkpoints import RunRegistration, register_run
from backend.services import open_services
from backend.settings import Settings
from backend.store import Store
from tests.backend import fake_hub, tiny_olmoe
from tests.backend.fake_hub import FakeHub
from tests.backend.inline import InlineRunner

pytestmark = pytest.mark.slow

LABELS = ("step20-tokens2B", "step5-tokens1B", "step100-tokens9B")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The weights of each step are its own."""
    here = tmp_path_factory.mktemp("repository")
    return {label: tiny_olmoe.save(here / label, seed=seed) for seed, label in enumerate(LABELS)}


@pytest.fixture
def hub(tmp_path: Path, repository: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub.running() as found:
        found.install(monkeypatch, tmp_path / "cache")
        for label, folder in repository.items():
            found.add(folder, branch=label)
        yield found


def sources(*labels: str) -> list[str]:
    return [f"someone/tiny@{label}" for label in labels or LABELS]


def test_revisions_of_a_repository_become_a_run_in_order_each_at_its_commit(hub: FakeHub, settings: Settings) -> None:
    with Store.open(settings.store) as store:
        kept = Checkpoints(settings, store).register_run(sources())
        assert [c.id for c in kept] == ["tiny/step5-tokens1B", "tiny/step20-tokens2B", "tiny/step100-tokens9B"]
        assert [(c.step, c.tokens) for c in kept] == [(5, 10**9), (20, 2 * 10**9), (100, 9 * 10**9)]
        assert [c.revision for c in kept] == [hub.branches["someone/tiny", LABELS[n]] for n in (1, 0, 2)]
        assert {c.run for c in kept} == {"tiny"} and all(c.registered for c in kept)
        assert len({c.fingerprint for c in kept}) == 3
        assert hub.fetched() == [] and not any(c.fetched for c in kept), "weights wait for the first question"
    with Store.open(settings.store) as store:
        again = Checkpoints(settings, store)
        assert [c.id for c in again.list()] == [c.id for c in kept]
        assert [c.place for c in again.list()] == [c.place for c in kept]
        assert again.find("someone/tiny@step20-tokens2B").revision == kept[1].revision
        assert again.register_run(sources()) == again.list()


def test_a_run_of_revisions_is_a_question_of_steps_whose_key_follows_the_commit(
    hub: FakeHub, settings: Settings
) -> None:
    with Store.open(settings.store) as store:
        kept = Checkpoints(settings, store).register_run(sources())
    question = ask("router_row_map", kept, None)
    assert question.labels == ("5", "20", "100")
    moved = [*kept[:-1], replace(kept[-1], fingerprint="of another commit")]
    assert ask("router_row_map", moved, None).key != question.key
    with pytest.raises(Refusal, match="in the order of training; these are not"):
        ask("router_row_map", kept[::-1], None)


def test_a_run_on_the_hub_is_asked_about_and_its_weights_come_with_the_question(
    hub: FakeHub, settings: Settings, one_thread: None
) -> None:
    words = tiny_olmoe.prompts(4)
    with open_services(settings, InlineRunner(settings.store)) as services:
        kept = services.checkpoints.register_run(sources())
        stages: list[str] = []
        ticket = Ticket(progress=lambda progress: stages.append(progress.stage))
        answer = services.answering.answer(ask("router_row_map", kept, None), ticket)
        assert [axis for axis in answer.result.axes if axis.labels == ("5", "20", "100")]
        assert len(hub.fetched()) == 3 and any("fetching tiny/step20-tokens2B" in stage for stage in stages)
        assert [c["revision"] for c in answer.provenance["checkpoints"]] == [c.revision for c in kept]
        here = [services.checkpoints.find(c.id) for c in kept]
        assert all(c.fetched for c in here)
        services.answering.answer(ask("expert_load", here[:1], words))
        assert len(hub.fetched()) == 3, "what came once does not travel again"
        assert services.answering.stored(ask("router_row_map", kept, None)), "by what the hub had announced"


def test_weights_that_no_question_reads_stay_on_the_hub(hub: FakeHub, settings: Settings, one_thread: None) -> None:
    words = tiny_olmoe.prompts(4)
    with open_services(settings, InlineRunner(settings.store)) as services:
        [first, second, _] = services.checkpoints.register_run(sources())
        for step in (first, second):
            services.answering.answer(ask("expert_load", [services.checkpoints.find(step.id)], words))
        assert len(hub.fetched()) == 2
        question = ask("load_difference", [first, second], words)
        services.answering.answer(question)
        assert len(hub.fetched()) == 2


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (sources("step5-tokens1B", "main"), "'main' names no step of a run"),
        (sources("step5-tokens1B"), "someone/tiny@step5-tokens1B is one checkpoint; a run is a list of two or more"),
        ([*sources(), "someone/tiny"], "someone/tiny names no revision and others do"),
        ([*sources(), "another/tiny@step7-tokens1B"], "are two repositories"),
        (sources("step5-tokens1B", "iter_0000100"), "count in two ways"),
        ([" "], "needs a folder of steps"),
    ],
)
def test_a_list_that_is_no_run_is_refused_before_the_hub_is_asked(
    hub: FakeHub, settings: Settings, wanted: list[str], reason: str
) -> None:
    with Store.open(settings.store) as store, pytest.raises(Refusal, match=reason):
        Checkpoints(settings, store).register_run(wanted)
    assert hub.seen == []


def test_two_names_of_one_commit_are_no_two_steps(hub: FakeHub, settings: Settings) -> None:
    hub.branches["someone/tiny", "step7-tokens1B"] = hub.branches["someone/tiny", "step5-tokens1B"]
    with Store.open(settings.store) as store:
        with pytest.raises(Refusal, match="'step5-tokens1B' and 'step7-tokens1B' are the same commit"):
            Checkpoints(settings, store).register_run(sources("step7-tokens1B", "step5-tokens1B"))
        assert store.checkpoints() == [] and hub.fetched() == []


def test_a_folder_of_steps_is_a_run_wherever_it_lies(settings: Settings, tiny: Path) -> None:
    run = settings.extra_roots[0] / "deep" / "mine"
    for name in ("checkpoint-500", "checkpoint-1000", "logs"):
        shutil.copytree(tiny, run / name)
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        kept = checkpoints.register_run([str(run)])
        assert [c.id for c in kept] == ["mine/checkpoint-500", "mine/checkpoint-1000"]
        assert checkpoints.register_run([str(run)]) == checkpoints.list()
        with pytest.raises(Conflict, match="a run 'mine' already"):
            checkpoints.register_run([str(run / "checkpoint-500"), str(run / "checkpoint-1000"), *more(run, tiny)])
        named = checkpoints.register_run([str(run / "checkpoint-1000"), str(run / "checkpoint-500")], "again")
        assert [c.id for c in named] == ["again/checkpoint-500", "again/checkpoint-1000"]


def more(run: Path, tiny: Path) -> list[str]:
    return [str(shutil.copytree(tiny, run / "checkpoint-1500"))]


def test_a_folder_under_a_root_is_found_by_any_name_of_a_step(settings: Settings, tiny: Path) -> None:
    for name in ("iter_0000100", "iter_0000020"):
        shutil.copytree(tiny, settings.extra_roots[0] / "mega" / name)
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        assert [(c.id, c.run, c.step) for c in checkpoints.list()] == [
            ("mega/iter_0000020", "mega", 20),
            ("mega/iter_0000100", "mega", 100),
        ]
        # What is listed already is not kept a second time.
        assert checkpoints.register_run([str(settings.extra_roots[0] / "mega")]) == checkpoints.list()
        assert store.checkpoints() == []


def test_a_run_is_registered_over_http_and_at_the_terminal_alike(settings: Settings, tiny: Path) -> None:
    run = settings.extra_roots[0] / "deep" / "mine"
    for name in ("checkpoint-500", "checkpoint-1000"):
        shutil.copytree(tiny, run / name)
    with LocalDoor(settings) as door:
        told = door.register_run([str(run)], "named")
    with Store.open(settings.store) as store:
        services: Any = SimpleNamespace(checkpoints=Checkpoints(settings, store))
        assert register_run(services, RunRegistration(sources=[str(run)], name="named")) == told
    assert told["run"] == "named"
    assert [(c["id"], c["step"], c["registered"]) for c in told["checkpoints"]] == [
        ("named/checkpoint-500", 500, True),
        ("named/checkpoint-1000", 1000, True),
    ]
    for wrong in ({"sources": []}, {"sources": ["a"], "name": "a/b"}, {"sources": ["a"], "more": 1}):
        with pytest.raises(ValidationError):
            RunRegistration(**wrong)


def test_steps_of_other_sizes_and_a_folder_of_none_are_refused_whole(settings: Settings, tiny: Path) -> None:
    run = settings.extra_roots[0] / "mixed"
    shutil.copytree(tiny, run / "step-00001")
    with Store.open(settings.store) as store:
        checkpoints = Checkpoints(settings, store)
        with pytest.raises(Refusal, match=r"holds 1 folder\(s\) named like a step; a run needs two or more"):
            checkpoints.register_run([str(run)])
        tiny_olmoe.save(run / "step-00002", hidden_size=32)
        with pytest.raises(Refusal, match=r"width 16 .*width 32 .*; a run keeps its shape"):
            checkpoints.register_run([str(run)], "other")
        assert store.checkpoints() == []
