"""Runs that an experiment trains itself: resumable, paired by seed, and what moves a router's mean row."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from analysis.lab.model import routers
from backend.lab.batches import CorpusMissing, TokenisedCorpus, batches
from backend.lab.experiment import Found
from backend.lab.model_files import load_state, vocabulary
from backend.lab.series import QUICK, Series, last_step, last_validation, over_seeds, paired, quick_corpus
from backend.lab.settings import DOMAINS, RunSettings
from backend.lab.train import moments

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_corpus(root / "data", tmp_path_factory.mktemp("quick"))


def test_the_interval_over_seeds_is_students() -> None:
    values = [0.1, 0.4, 0.3, 0.7]
    found = over_seeds(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))
    assert over_seeds([0.5]).value == 0.5 and math.isnan(over_seeds([0.5]).low)


def test_pairs_of_seeds_take_out_what_seeds_share() -> None:
    assert paired([1.0, 5.0, 9.0], [0.5, 4.5, 8.5]) == Found(0.5, 0.5, 0.5)


def test_the_quick_corpus_holds_each_shipped_sequence_once(root: Path, corpus: Path) -> None:
    stored = np.load(root / "data/checkpoints/aux/first-batches.npy")
    parts = [TokenisedCorpus(corpus).sequences(part, domain) for domain in DOMAINS for part in ("train", "validation")]
    found = np.concatenate([np.asarray(part) for part in parts])
    assert sorted(map(bytes, found)) == sorted(map(bytes, stored.reshape(-1, stored.shape[-1])))
    assert [len(part) for part in parts] == [76, 4] * len(DOMAINS)


def test_a_series_trains_what_is_missing_and_nothing_twice(corpus: Path, tmp_path: Path) -> None:
    told: list[str] = []
    series = Series(corpus, tmp_path, 2, QUICK, told=lambda stage, fraction: told.append(stage))
    named = {"free": series.over_seeds(series.like("free"))}
    first = series.train(named)
    assert told == ["trained 1 of 2 runs", "trained 2 of 2 runs"]
    assert [run.name for run in first["free"]] == ["free-s0", "free-s1"]
    states = [load_state(Path(last_step(run))) for run in first["free"]]
    assert not torch.equal(*(state["model.embed_tokens.weight"] for state in states))
    assert all(last_validation(run)["step"] == QUICK.steps for run in first["free"])
    assert series.train(named) == first and len(told) == 2


def test_without_text_the_command_that_builds_it_is_named(tmp_path: Path) -> None:
    series = Series(tmp_path, tmp_path, 1, QUICK)
    with pytest.raises(CorpusMissing, match="moe-geometry lab corpus"):
        series.train({"free": series.over_seeds(series.like("free"))})


def moved(corpus: Path, **changed: object) -> float:
    """How far the mean row of the routers went in a few steps, over how far the rows went."""
    settings: RunSettings = replace(QUICK, **({"router": "softmax_aux", "balancing": 0.03, "steps": 8} | changed))
    rows = []
    for moment in moments(settings, vocabulary(corpus), batches(TokenisedCorpus(corpus), 0)):
        if moment.step in (0, settings.steps):
            rows.append(torch.stack([router.weight.detach().double() for router in routers(moment.model)]).clone())
    gone = rows[1] - rows[0]
    return float(gone.mean(1).norm() / gone.norm())


def test_no_gradient_of_task_or_balance_moves_the_mean_row_of_a_softmax_router_but_others_do(corpus: Path) -> None:
    """Rows by plain SGD follow the gradient alone, and softmax gradients of all rows sum to zero."""
    still = moved(corpus, row_optimiser="sgd")
    assert still < 1e-5
    assert moved(corpus, row_optimiser="sgd", options={"router_z_loss_coef": 0.1}) > 100 * still
    assert moved(corpus, row_optimiser="sgd", router="sigmoid_aux") > 100 * still
    assert moved(corpus) > 100 * still
