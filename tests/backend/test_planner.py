"""Which shards still have to run, and at what price."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from analysis.measure import get
from analysis.statistic import statistics
from backend import planner, prices
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint
from backend.errors import TooLarge
from backend.paging.choice import places
from backend.prices import Machine
from backend.prompts import Prompt, PromptSet
from backend.question import ask
from backend.store import Artifact

CHECKPOINT = Checkpoint(
    "free/step-00020",
    "x",
    "/x",
    moe_layers=2,
    experts=4,
    top_k=2,
    model=8,
    hidden=8,
    memory_bytes=1000,
    fingerprint="f1",
)
FILE = Artifact("d", "state", "bytes", (1,), 1, "arrays/d")


class Kept:
    """A store that remembers keys alone."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def state_files(self, keys: list[str]) -> dict[str, Artifact]:
        return {key: FILE for key in keys if key in self.keys}

    def chunk_keys(self, keys: list[str]) -> set[str]:
        return self.keys & set(keys)

    def run(self, plan: planner.Plan) -> None:
        for side in plan.sides:
            for work in side.missing:
                self.keys |= {*work.statistics.values(), work.routes or ""}


def words(count: int, category: str = "story") -> PromptSet:
    return PromptSet("words", tuple(Prompt(f"p{n}", f"text {n}", category) for n in range(count)), shipped=False)


def test_a_new_question_runs_every_shard_and_keeps_all_that_is_cheap() -> None:
    [side] = planner.plan(ask("expert_load", [CHECKPOINT], words(40)), Kept()).sides
    assert [len(work.prompts) for work in side.missing] == [16, 16, 8]
    cheap = {name for name, statistic in statistics().items() if not statistic.needs & prices.DEAR}
    assert all(set(work.statistics) == cheap and work.routes for work in side.missing)


def test_what_makes_a_pass_dearer_is_run_only_where_it_is_asked_for() -> None:
    asked = ask("expert_load", [CHECKPOINT], words(4))
    [side] = planner.plan(asked, Kept()).sides
    assert not any(statistics()[name].needs & prices.DEAR for work in side.missing for name in work.statistics)


def test_after_one_pass_another_measure_and_another_knob_need_none() -> None:
    kept = Kept()
    kept.run(planner.plan(ask("expert_load", [CHECKPOINT], words(40)), kept))
    for question in (
        ask("load_entropy", [CHECKPOINT], words(40)),
        ask("coactivation", [CHECKPOINT], words(40)),
        ask("expert_load", [CHECKPOINT], words(40), {"count": "served"}),
    ):
        plan = planner.plan(question, kept)
        assert plan.price.passes == 0
        assert [len(files) for files in plan.sides[0].stored.values()] == [3] * len(question.measure.statistics)


def test_adding_prompts_runs_only_the_new_shards() -> None:
    kept = Kept()
    kept.run(planner.plan(ask("expert_load", [CHECKPOINT], words(32)), kept))
    [side] = planner.plan(ask("expert_load", [CHECKPOINT], words(48)), kept).sides
    assert [[p.id for p in work.prompts] for work in side.missing] == [[f"p{n}" for n in range(32, 48)]]


def test_new_labels_need_no_pass() -> None:
    kept = Kept()
    kept.run(planner.plan(ask("expert_load", [CHECKPOINT], words(20)), kept))
    assert planner.plan(ask("signature_effect", [CHECKPOINT], words(20, "code")), kept).price.passes == 0


def test_a_comparison_runs_only_the_side_that_is_missing() -> None:
    kept, other = Kept(), replace(CHECKPOINT, id="aux/step-00020", fingerprint="f2")
    kept.run(planner.plan(ask("expert_load", [CHECKPOINT], words(20)), kept))
    plan = planner.plan(ask("load_difference", [CHECKPOINT, other], words(20)), kept)
    assert [bool(side.missing) for side in plan.sides] == [False, True]
    assert plan.price.passes == 1


def test_a_measure_of_weights_needs_no_pass_but_room_for_the_weights() -> None:
    price = planner.plan(ask("router_cosine", [CHECKPOINT], None), Kept()).price
    assert price.passes == price.tokens == 0
    assert price.memory_bytes >= CHECKPOINT.memory_bytes


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    question = ask("expert_load", [replace(CHECKPOINT, memory_bytes=14_000_000_000)], words(20))
    told = r"expert_load of free/step-00020 needs about 14\.0 GB \(weights 14\.0 GB, .*the budget is 8\.0 GB\. Nothing"
    with pytest.raises(TooLarge, match=told):
        planner.check(question, planner.plan(question, Kept()), Machine("cpu", 8_000_000_000))


def test_what_would_fit_is_said_and_does_fit() -> None:
    """The states of this measure grow with the prompts; the machine has room for weights, a batch, and some of them."""
    question = ask("expert_load", [CHECKPOINT], words(2000))
    plan = planner.plan(question, Kept())
    need = plan.price.need
    machine = Machine("cpu", need.weights + need.batch + need.states["prompt_counts"] // 2)
    with pytest.raises(TooLarge) as caught:
        planner.check(question, plan, machine)
    [count] = map(int, re.findall(r"at most (\d+) of the 2000 prompts", str(caught.value)))
    assert 900 < count < 1100
    fewer = ask("expert_load", [CHECKPOINT], words(count))
    planner.check(fewer, planner.plan(fewer, Kept()), machine)
    more = ask("expert_load", [CHECKPOINT], words(count + 1))
    with pytest.raises(TooLarge):
        planner.check(more, planner.plan(more, Kept()), machine)


def test_how_a_model_is_held_follows_from_the_room() -> None:
    """Weights of 1,000 bytes: one card takes four fifths of itself in weights, the host what its memory says."""

    def held(machine: Machine) -> str:
        return prices.need(CHECKPOINT, ["prompt_counts"], [], CaptureOptions(), machine).held

    assert held(Machine("cpu", 1000)) == held(Machine("cuda:0", 1000, (1250, 600))) == "resident"
    assert held(Machine("cuda:1", 1000, (1250, 600))) == held(Machine("cuda:0", 1000, (600,))) == "device_map"
    assert held(Machine("cpu", 999)) == held(Machine("cuda:0", 999, (600, 600))) == "paged"
    spread = places(CHECKPOINT, "auto", 1000, "cuda:1", (1250, 600))
    assert spread is not None and list(spread.items()) == [(1, 480), (0, 1000), ("cpu", 1000)]


def test_a_spread_model_fits_where_all_devices_take_it_and_its_own_a_batch() -> None:
    question = ask("expert_load", [replace(CHECKPOINT, memory_bytes=3_000_000_000)], words(20))
    for cards, fits in (((2_000_000_000,), True), ((200_000,), False)):  # 40 kB of a card are left for batches of 4 MB
        machine = Machine("cuda:0", 4_000_000_000, cards)
        plan = planner.plan(question, Kept(), machine)
        assert plan.price.need.held == "device_map"
        if fits:
            planner.check(question, plan, machine)
            continue
        with pytest.raises(TooLarge, match="one batch"):
            planner.check(question, plan, machine)


class Paces:
    """A store that knows these passes."""

    def __init__(self, *rows: tuple[str, int, float, float]) -> None:
        self.rows = list(rows)

    def paces(self, device: str) -> list[tuple[str, int, float, float]]:
        return self.rows if device == "cpu" else []


def test_time_is_that_of_earlier_passes_or_not_known() -> None:
    big = replace(CHECKPOINT, fingerprint="f2", parameters=10_000)
    active = prices.active_parameters(big)
    assert active == 10_000 - 2 * 2 * 3 * 8 * 8
    assert prices.seconds([], "cpu", Paces()) == (0.0, "no pass is needed")
    assert prices.seconds([(big, 100)], "cpu", Paces())[0] is None
    kept = Paces(("f1", 1000, 10.0, active / 2))
    own, how = prices.seconds([(CHECKPOINT, 200)], "cpu", kept)
    assert own == 2.0 and "same checkpoint" in how
    other, how = prices.seconds([(big, 100)], "cpu", kept)
    assert other == pytest.approx(2.0), "twice the active parameters, half the pace"
    assert "GFLOP/s in earlier passes on cpu" in how
    assert prices.seconds([(big, 100)], "cuda:0", kept)[0] is None, "another device says nothing of this one"


def test_every_step_of_a_trajectory_is_planned_and_only_the_missing_ones_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(get("load_difference"), name="followed", sides=("steps",))
    monkeypatch.setattr("backend.question.get", lambda name: made)
    many = [replace(CHECKPOINT, id=f"free/{n}", run="free", step=n, fingerprint=f"f{n}") for n in (0, 20, 80)]
    kept = Kept()
    monkeypatch.setattr("backend.question.get", get)
    kept.run(planner.plan(ask("expert_load", many[1:2], words(20)), kept))
    monkeypatch.setattr("backend.question.get", lambda name: made)
    plan = planner.plan(ask("followed", many, words(20)), kept)
    assert [bool(side.missing) for side in plan.sides] == [True, False, True] and plan.price.passes == 2


def test_matrices_of_all_sides_must_fit_together_but_router_rows_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    both, prices = [CHECKPOINT, replace(CHECKPOINT, id="aux", fingerprint="f2")], []
    for slot in ("up_weight", "router_weight"):
        made = replace(get("load_difference"), name="compared", reads=(slot,))
        monkeypatch.setattr("backend.question.get", lambda name, made=made: made)
        prices.append(planner.plan(ask("compared", both, None), Kept()).price.memory_bytes)
    assert prices[0] == 2 * prices[1]


def test_a_dearer_pass_is_priced_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, price = statistics()["prompt_counts"], {}
    for needs in ("layers", "gate", "backward"):
        made = {**statistics(), "prompt_counts": replace(plain, needs=frozenset({needs}))}
        for module in (planner, prices):
            monkeypatch.setattr(module, "statistics", lambda made=made: made)
        price[needs] = planner.plan(
            ask("expert_load", [replace(CHECKPOINT, layers=2)], words(4)), Kept()
        ).price.memory_bytes
    assert price["gate"] - price["layers"] == 4096 * 2 * 2 * 2 * 8 * 4, "gate and up of 2 slots in 2 layers, in float32"
    assert price["backward"] > price["layers"]


def test_what_is_large_is_kept_only_where_it_is_asked_for() -> None:
    olmoe = replace(CHECKPOINT, moe_layers=16, layers=16, experts=64, top_k=8, model=2048, hidden=1024)
    [side] = planner.plan(ask("expert_load", [olmoe], words(16)), Kept()).sides
    kept = {name for work in side.missing for name in work.statistics}
    assert {"prompt_counts", "coactivation_counts", "router_sums", "contribution_sums"} <= kept
    assert "routed_rows" not in kept and "centroid_sums" not in kept
    [side] = planner.plan(ask("grassmann_distance", [olmoe], words(16)), Kept()).sides
    assert all("routed_rows" in work.statistics and "prompt_counts" in work.statistics for work in side.missing)
