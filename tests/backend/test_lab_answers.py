"""What is answered of the routers that ship, as README tells it: balance beside its floor, and tasks told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.result import Interval, Null, Result
from backend.settings import Settings
from tests.backend.trace_files import Bench, bench

pytestmark = pytest.mark.slow

ROUTERS = ("aux", "free", "kmeans", "none")


class Shipped:
    """Questions about shipped steps, each asked once."""

    def __init__(self, opened: Bench) -> None:
        self.violation = cache(lambda run: opened.ask("load_violation", f"{run}/step-06000", prompts="validation"))
        self.signatures = cache(lambda name, run, step: opened.ask(name, f"{run}/step-{step}", prompts="four-tasks"))


@pytest.fixture(scope="module")
def shipped(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    """One thread: these models are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with bench(Settings(data=root / "data", store=tmp_path_factory.mktemp("shipped"), device="cpu")) as opened:
        yield Shipped(opened)
    torch.set_num_threads(before)


def bounds(result: Result) -> Interval:
    assert isinstance(result.interval, Interval)
    return result.interval


@pytest.mark.parametrize("run", ROUTERS)
def test_max_violation_of_the_prompt_set_is_that_of_the_training_log(shipped: Shipped, root: Path, run: str) -> None:
    lines = [json.loads(row) for row in (root / f"data/checkpoints/{run}/log.jsonl").read_text().splitlines()]
    logged = next(row for row in lines if row["kind"] == "validation" and row["step"] == 6000)
    np.testing.assert_allclose(shipped.violation(run).values, logged["max_violation"]["layers"], atol=5e-3, rtol=0)


def test_without_a_rule_every_layer_is_less_balanced_than_with_any_beyond_their_intervals(shipped: Shipped) -> None:
    low = bounds(shipped.violation("none")).low
    for run in ("aux", "free", "kmeans"):
        assert (low > bounds(shipped.violation(run)).high).all(), run


def test_the_auxiliary_loss_balances_less_than_a_bias_or_k_means(shipped: Shipped) -> None:
    """In layer 0 beyond the intervals, as README says; deeper they overlap, and only the means have that order."""
    aux = shipped.violation("aux")
    for run in ("free", "kmeans"):
        other = shipped.violation(run)
        assert bounds(aux).low[0] > bounds(other).high[0]
        assert aux.values.mean() > other.values.mean()


@pytest.mark.parametrize("run", ROUTERS)
def test_balance_stands_beside_the_floor_of_uniform_routing(shipped: Shipped, run: str) -> None:
    floor = shipped.violation(run).null
    assert isinstance(floor, Null) and floor.low == 0
    # Of 100,000 simulations it is 0.01912; of 2,000, as here, it scatters by 0.0003: within four of these.
    assert floor.high == pytest.approx(0.01912, abs=1.2e-3)
    assert (shipped.violation(run).values > floor.high).all()


@pytest.mark.parametrize("run", ROUTERS)
def test_prompts_of_a_task_are_routed_more_alike_than_prompts_of_different_tasks(
    shipped: Shipped, root: Path, run: str
) -> None:
    """The pairs averaged here, one by one; and the effect says the same two means."""
    texts = [json.loads(row) for row in (root / "data/prompts/four-tasks.jsonl").read_text().splitlines()]
    task = {row["id"]: row["category"] for row in texts}
    found = shipped.signatures("signature_similarity", run, "06000")
    tasks = np.array([task[label] for label in found.axes[0].labels])
    pairs = np.triu_indices(len(tasks), 1)
    same, cosines = (tasks[:, None] == tasks)[pairs], found.values[pairs]
    within, across = cosines[same].mean(), cosines[~same].mean()
    assert within > across + 0.15
    told = shipped.signatures("signature_effect", run, "06000").facts
    assert (told["within"], told["across"]) == (pytest.approx(within), pytest.approx(across))


@pytest.mark.parametrize(
    ("run", "end", "start"), [("aux", 3.46, 0.46), ("free", 3.51, 0.46), ("kmeans", 2.06, 0.33), ("none", 2.32, 0.46)]
)
def test_training_sets_tasks_further_apart_than_the_untrained_router_does(
    shipped: Shipped, run: str, end: float, start: float
) -> None:
    found = [shipped.signatures("signature_effect", run, step) for step in ("06000", "00000")]
    sizes = [result.facts["Cohen's d"] for result in found]
    assert sizes[0] > 4 * sizes[1]
    assert sizes == pytest.approx([end, start], abs=0.02)


def test_the_classifier_stands_beside_an_untrained_router_and_what_the_words_alone_tell(shipped: Shipped) -> None:
    trained, start = (shipped.signatures("signature_classifier", "aux", step) for step in ("06000", "00000"))
    assert (float(trained.values), float(start.values)) == (pytest.approx(0.988, abs=5e-3), pytest.approx(0.575))
    assert trained.facts["from its token ids alone"] == pytest.approx(0.963, abs=5e-3)
    assert trained.facts["from a random router of its token ids"] == pytest.approx(0.65)
