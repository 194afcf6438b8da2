"""What ships in data/checkpoints is what the committed settings and code make."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from analysis.lab.model import register
from backend.lab.batches import stored_batches
from backend.lab.grid import GridResult, chosen
from backend.lab.model_files import load_state, relative_distance, state, step_folder, vocabulary
from backend.lab.ship import SHIPPED
from backend.lab.train import FIRST_BATCHES, finished, moments, read_settings

pytestmark = pytest.mark.slow

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "checkpoints"
VALIDATION = CHECKPOINTS.parent / "prompts" / "validation.jsonl"
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These models are too small to share: on a busy machine two threads spend ten times the time waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_first_twenty_steps_retrained_give_the_stored_step(name: str) -> None:
    run = CHECKPOINTS / name
    words = vocabulary(step_folder(run, 0))
    stream = stored_batches(run / "first-batches.npy")
    for moment in islice(moments(SHIPPED[name], words, stream), FIRST_BATCHES + 1):
        if moment.step == 0:
            assert relative_distance(state(moment.model), load_state(step_folder(run, 0))) < 2e-3
    assert moment.step == FIRST_BATCHES
    assert relative_distance(state(moment.model), load_state(step_folder(run, FIRST_BATCHES))) < 2e-3
    # The law would be empty if twenty steps moved the state by less than its tolerance.
    assert relative_distance(load_state(step_folder(run, 0)), load_state(step_folder(run, FIRST_BATCHES))) > 2e-2


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_run_holds_the_committed_settings_and_every_stored_step(name: str) -> None:
    run = CHECKPOINTS / name
    assert finished(SHIPPED[name], run)
    assert read_settings(json.loads((run / "run.json").read_text())["settings"]) == SHIPPED[name]
    stored = sorted(folder.name for folder in run.iterdir() if folder.is_dir())
    assert stored == [f"step-{step:05d}" for step in SHIPPED[name].stored]
    assert len(stored) >= 6
    assert {0, 20} <= set(SHIPPED[name].stored)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_stored_step_stands_alone_and_its_log_line_is_its_own(name: str) -> None:
    register()
    folder = step_folder(CHECKPOINTS / name, SHIPPED[name].steps)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    lines = [json.loads(line) for line in (CHECKPOINTS / name / "log.jsonl").read_text().splitlines()]
    told = next(line["loss"] for line in reversed(lines) if line["kind"] == "validation")
    texts: dict[str, list[str]] = {}
    for row in map(json.loads, VALIDATION.read_text().splitlines()):
        texts.setdefault(row["category"], []).append(row["text"])
    found = {domain: loss_of(model, tokenizer, of) for domain, of in texts.items()}
    # The log is of windows of tokens; a few of them, read back from their text, are one token shorter.
    for domain, loss in found.items():
        assert loss == pytest.approx(told[domain], abs=0.012)
    assert sum(found.values()) / len(found) == pytest.approx(told["all"], abs=0.005)


@torch.no_grad()
def loss_of(model: Any, tokenizer: Any, texts: list[str]) -> float:
    """Mean over texts of each text's mean loss, in nats a token."""
    losses = []
    for at in range(0, len(texts), 20):
        ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts[at : at + 20]]
        labels = pad_sequence(ids, batch_first=True, padding_value=-100)
        logits = model(labels.clamp(min=0)).logits
        by_token = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
        there = (labels[:, 1:] >= 0).double()
        losses.append((by_token.view_as(there) * there).sum(1) / there.sum(1))
    return float(torch.cat(losses).mean())


@pytest.mark.parametrize("name", SHIPPED)
def test_the_log_has_loss_perplexity_by_domain_and_violation_at_every_stored_step(name: str) -> None:
    lines = [json.loads(line) for line in (CHECKPOINTS / name / "log.jsonl").read_text().splitlines()]
    seen = {line["step"]: line for line in lines if line["kind"] == "validation"}
    for step in SHIPPED[name].stored:
        assert set(seen[step]["perplexity"]) == {"code", "mathematics", "story", "fact", "all"}
        assert seen[step]["tokens"] >= 40_000
        selects_nothing = SHIPPED[name].router in ("soft", "dense")
        assert ("reason" in seen[step]["max_violation"]) is selects_nothing
    assert seen[SHIPPED[name].steps]["loss"]["all"] < seen[0]["loss"]["all"] - 2
    assert [line for line in lines if line["kind"] == "train"][-1]["step"] == SHIPPED[name].steps


def test_without_a_bias_rule_the_busiest_expert_serves_more_of_the_validation_tokens() -> None:
    end = {}
    for name, settings in SHIPPED.items():
        lines = [json.loads(line) for line in (CHECKPOINTS / name / "log.jsonl").read_text().splitlines()]
        last = next(line for line in lines if line["kind"] == "validation" and line["step"] == settings.steps)
        end[name] = last["max_violation"].get("mean")
    assert min(end["aux"], end["none"]) > max(end["free"], end["kmeans"])
    assert end["aux-s1"] > end["free-s1"]


def test_runs_of_a_seed_saw_the_same_tokens_whatever_their_router() -> None:
    first = {name: np.load(CHECKPOINTS / name / "first-batches.npy") for name in SHIPPED}
    for name, settings in SHIPPED.items():
        twin = next(other for other in SHIPPED if SHIPPED[other].seed == settings.seed)
        assert np.array_equal(first[name], first[twin])
    assert not np.array_equal(first["aux"], first["aux-s1"])


def test_the_shipped_speeds_are_the_choice_of_the_kept_grid() -> None:
    lines = (CHECKPOINTS / "balancing-grid.jsonl").read_text().splitlines()
    results = [GridResult(**json.loads(line)) for line in lines]
    speeds = chosen(results)
    assert all(settings.balancing == speeds.get(settings.router) for settings in SHIPPED.values())
    tried = [sum(result.router == router for result in results) for router in speeds]
    assert len(set(tried)) == 1


def test_the_checkpoints_fit_in_sixty_megabytes() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINTS.rglob("*") if path.is_file()) <= 60 * MEGABYTE
