"""A checkpoint whose weights are still on the hub: an edit fetches them as a question does, a typed text says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend.checkpoints import Checkpoints
from backend.edits.asking import Asked, Means, pruned, tried
from backend.errors import Conflict, TooLarge
from backend.prompts import Prompt, PromptSet
from backend.routes.sentences import SentenceBody, put
from backend.runners.messages import EditTask, Message, Progress, PruneTask, TriedReady
from backend.settings import Settings
from backend.store import Store
from tests.backend import fake_hub, tiny_olmoe
from tests.backend.fake_hub import NAME, FakeHub

WORDS = PromptSet("words", (Prompt("a", "one two", "none"),), shipped=False)


class Noted:
    """A runner that only notes what it was given."""

    device = "cpu"

    def __init__(self) -> None:
        self.tasks: list[EditTask | PruneTask] = []

    def run(self, task: Any) -> Iterator[Message]:
        self.tasks.append(task)
        yield TriedReady(task.id, {"told": "done"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub.running() as found:
        found.install(monkeypatch, tmp_path / "cache")
        found.add(tiny_olmoe.save(tmp_path / "repository"))
        yield found


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    settings = Settings(data=tmp_path / "data", store=tmp_path / "store")
    with Store.open(settings.store) as store:
        yield Checkpoints(settings, store)


def means(checkpoints: Checkpoints, budget: int = 1 << 30) -> Means:
    return Means(checkpoints.find, checkpoints.bring, Noted(), budget)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("what", ["edit", "prune"])
def test_an_edit_fetches_what_is_still_on_the_hub_once_and_tells_how_far_it_is(
    hub: FakeHub, checkpoints: Checkpoints, what: str
) -> None:
    with_, stages = means(checkpoints), list[Progress]()
    assert not checkpoints.register(NAME).fetched
    for _ in range(2):
        if what == "edit":
            tried(Asked(NAME, {"kind": "off", "layer": "0", "expert": 1}), WORDS, with_, stages.append)
        else:
            pruned(NAME, 0.25, 0, WORDS, with_, stages.append)
    first, second = with_.runner.tasks  # type: ignore[attr-defined]
    for task in (first, second):
        assert task.checkpoint.fetched and (Path(task.checkpoint.folder) / "model.safetensors").is_file()
    assert len(hub.fetched()) == 1 and stages[-1].stage.startswith(f"fetching {NAME}") and stages[-1].fraction == 1


def test_what_does_not_fit_is_refused_before_any_weight_travels(hub: FakeHub, checkpoints: Checkpoints) -> None:
    checkpoints.register(NAME)
    with pytest.raises(TooLarge, match="need about"):
        tried(Asked(NAME, {"kind": "off", "layer": "0", "expert": 1}), WORDS, means(checkpoints, 1000), lambda p: None)
    assert not hub.fetched()


def test_a_typed_text_says_that_the_weights_are_away_and_what_fetches_them(
    hub: FakeHub, checkpoints: Checkpoints
) -> None:
    services: Any = SimpleNamespace(checkpoints=checkpoints, runner=None)
    checkpoints.register(NAME)
    with pytest.raises(Conflict, match=rf"weights of {NAME} \(.* MB\) are still on the hub.*Ask one question of it"):
        put(services, SentenceBody(checkpoint=NAME, text="x"))
    assert not hub.fetched()
