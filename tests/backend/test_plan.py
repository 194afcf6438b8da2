"""What a question would take, said before it is begun: over the API, at the terminal, on a machine too small for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from backend import planner
from backend.capture import CaptureOptions
from backend.cli import app
from backend.cli.door import Wanted
from backend.cli.local import LocalDoor
from backend.cli.table import plan_table
from backend.errors import TooLarge
from backend.prices import Machine
from backend.question import ask
from backend.routes.questions import QuestionBody, plan
from backend.runners.messages import CaptureTask
from backend.services import Services, open_services
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.inline import InlineRunner

WORDS = tiny_olmoe.prompts(20)
NAMES = {"measure": "expert_load", "checkpoints": ["tiny"], "prompts": "words"}


@pytest.fixture
def settings(tmp_path: Path, tiny_models: Path) -> Settings:
    return Settings(data=tmp_path / "data", store=tmp_path / "store", device="cpu", extra_roots=(tiny_models,))


@pytest.fixture
def services(settings: Settings, one_thread: None) -> Iterator[Services]:
    with open_services(settings, InlineRunner(settings.store)) as found:
        found.store.add_prompt_set(WORDS)
        yield found


def test_a_plan_says_where_how_and_for_how_much_and_starts_nothing(services: Services) -> None:
    told = plan(services, QuestionBody(**NAMES))
    assert (told["answered"], told["passes"], told["device"], told["dtype"]) == (False, 1, "cpu", "float32")
    assert (told["held"], told["download_bytes"], told["seconds"]) == ("resident", 0, None)
    assert told["how"]["seconds"] == "not known yet: no pass was kept that ran on cpu"
    memory = told["memory"]
    assert told["memory_bytes"] == memory["weights"] + memory["batch"] + sum(memory["states"].values())
    assert memory["weights"] == services.checkpoints.find("tiny").memory_bytes and memory["states"]["prompt_counts"]
    assert not services.runner.log  # type: ignore[attr-defined]
    assert json.loads(json.dumps(told)) == told


def test_time_is_known_once_something_ran_and_outlives_the_service(services: Services, settings: Settings) -> None:
    tiny = services.checkpoints.find("tiny")
    services.answering.answer(ask("expert_load", [tiny], WORDS))
    [(mark, tokens, seconds, active)] = services.store.paces("cpu")
    assert mark == tiny.fingerprint and tokens == sum(len(p.text) for p in WORDS.prompts) and seconds > 0
    assert 0 < active < tiny.parameters
    again = plan(services, QuestionBody(**NAMES))
    assert again["answered"] and again["passes"] == 0 and again["seconds"] == 0
    new = ask("expert_load", [tiny], replace(tiny_olmoe.prompts(8, start=500), name="new"))
    told = services.answering.told(new)
    assert told["seconds"] == pytest.approx(told["tokens"] * seconds / tokens)
    other = services.answering.told(replace(new, checkpoints=(services.checkpoints.find("other"),)))
    assert other["seconds"] == pytest.approx(told["seconds"]) and "GFLOP/s" in other["how"]["seconds"]


def test_a_machine_too_small_is_told_before_any_work_and_what_would_fit_is_asked(
    services: Services, settings: Settings
) -> None:
    tiny = services.checkpoints.find("tiny")
    question = ask("expert_load", [tiny], WORDS)
    need = services.answering.plan(question).price.need
    least = need.batch * planner.LEAST_BATCH // CaptureOptions().batch_tokens
    room = need.weights + least + need.states["prompt_counts"] // 2
    small = services.answering.__class__(services.store, services.runner, room, services.checkpoints.bring)
    for act in (small.told, small.answer):
        with pytest.raises(TooLarge, match=r"at most \d+ of the 20 prompts") as caught:
            act(question)
    assert not services.runner.log  # type: ignore[attr-defined]
    count = int(str(caught.value).split("at most ")[1].split()[0])
    fewer = replace(WORDS, prompts=WORDS.prompts[:count])
    assert small.answer(ask("expert_load", [tiny], fewer)).result.prompts == count


def test_what_fits_in_smaller_batches_is_run_in_them_and_is_the_same_answer(services: Services) -> None:
    tiny = services.checkpoints.find("tiny")
    question = ask("jacobian_alignment", [tiny], WORDS)
    need = services.answering.plan(question).price.need
    room = need.weights + need.batch // 3 + sum(need.states.values())
    small = services.answering.__class__(services.store, services.runner, room, services.checkpoints.bring)
    told = small.told(question)
    assert told["batch_tokens"] == 1024 and told["memory_bytes"] <= room < need.total
    found = small.answer(question)
    [captured] = [t for t in services.runner.log if isinstance(t, CaptureTask)]  # type: ignore[attr-defined]
    assert captured.capture.batch_tokens == 1024 and found.provenance["key"] == question.key
    assert services.answering.stored(question) is not None


def test_a_measure_whose_samples_do_not_fit_is_refused_with_its_names_and_those_that_would(services: Services) -> None:
    wide = replace(services.checkpoints.find("tiny"), moe_layers=16, layers=16, experts=64, model=2048, memory_bytes=0)
    question = ask("grassmann_distance", [wide], WORDS)
    machine = Machine("cpu", 600_000_000)  # its sample alone takes 0.67 GB
    question, plan = planner.fitted(question, services.store, machine)
    assert plan.price.need.batch < machine.memory < plan.price.need.states["routed_rows"]
    with pytest.raises(TooLarge, match=r"grassmann_distance of tiny needs about .*routed_rows 0\.7 GB") as caught:
        planner.check(question, plan, machine)
    [names] = re.findall(r"another measure of representation: ([\w, ]+?)(?: and \d+ more)? \(", str(caught.value))
    for name in names.split(", "):
        other, fits = planner.fitted(ask(name, [wide], WORDS), services.store, machine)
        planner.check(other, fits, machine)


def test_the_terminal_shows_the_same_plan(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "words.jsonl"
    file.write_text("".join(json.dumps({"id": p.id, "text": p.text}) + "\n" for p in WORDS.prompts))
    wanted = Wanted("grassmann_distance", ["tiny"], str(file))
    with LocalDoor(settings) as door:
        told = door.plan(wanted)
    command = ["ask", "--plan", "--measure", wanted.measure, "--checkpoint", "tiny", "--prompts", str(file)]
    surroundings = {"MOE_GEOMETRY_STORE": str(settings.store), "MOE_GEOMETRY_ROOTS": str(settings.extra_roots[0])}
    surroundings |= {"MOE_GEOMETRY_DEVICE": "cpu", "MOE_GEOMETRY_MEMORY": str(settings.memory_budget)}
    shown = CliRunner().invoke(app, command, env=surroundings).output
    assert json.loads(CliRunner().invoke(app, [*command, "--json"], env=surroundings).output) == told
    assert "routed_rows" in told["memory"]["states"]
    for part in ("cpu", "float32", "resident", "routed_rows", "not known yet", "4 characters a token"):
        assert part in shown, shown
    with LocalDoor(replace(settings, memory_budget=1000)) as door, pytest.raises(TooLarge, match=r"budget is 0\.0 MB"):
        door.plan(wanted)


def test_a_cap_of_memory_is_a_setting() -> None:
    assert Settings.from_environment({"MOE_GEOMETRY_MEMORY": "123"}).memory_budget == 123


def test_what_still_lies_on_the_hub_is_in_the_plan(services: Services) -> None:
    away = replace(services.checkpoints.find("tiny"), fetched=False)
    checkpoints = SimpleNamespace(find=lambda name: away, start_of=services.checkpoints.start_of)
    services_: Any = SimpleNamespace(checkpoints=checkpoints, prompts=services.prompts, answering=services.answering)
    told = plan(services_, QuestionBody(**NAMES))
    assert told["download_bytes"] == away.weight_bytes > 0 and "fetched first" in plan_table(told)
