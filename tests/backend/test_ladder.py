"""A ladder of known order: a shipped checkpoint beside itself with its experts renamed, and with noise of 1 % and 10 %.

Every distance after matching climbs it. The next stored step and another router of the same seed stand on the same
axis; where, nobody knows beforehand.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from analysis.inference import evaluate
from analysis.lab.model import register
from analysis.measure import Inputs, get, measures
from analysis.result import Interval, Reason, Result
from analysis.slots import SLOTS
from analysis.statistic import State
from analysis.statistic import get as get_statistic
from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from backend.prompts import Prompt

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

EVERY_NTH = 5  # 16 of the 80 prompts, of all four categories, in all eight blocks
PAIRED = [name for name, m in measures().items() if any(knob.name == "matching" for knob in m.knobs)]
RUNGS = ("renamed", "1 %", "10 %")
BESIDE = ("the next stored step", "another router, same seed")


@torch.no_grad()
def renamed(model: Any) -> Any:
    """The same model with the experts of each layer in an order of its own."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        order = torch.randperm(model.config.num_experts, generator=generator)
        for tensor in (*layer.mlp.parameters(), *layer.mlp.buffers()):
            tensor.copy_(tensor[order])
    return model


@torch.no_grad()
def noisy(model: Any, share: float) -> Any:
    """Noise of this share of each tensor's root mean square in router and experts: the same direction for any share."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    for layer in model.model.layers:
        for tensor in layer.mlp.parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.add_(share * tensor.square().mean().sqrt() * noise)
    return model


def inputs(model: Any, tokenizer: Any, prompts: list[Prompt]) -> Inputs:
    """All that the measures after matching, and the matching itself, read of a model."""
    reads = {name for measure in (*PAIRED, "expert_matching") for name in get(measure).reads}
    names, anatomy = sorted(reads - set(SLOTS)), adapt(model)
    needs = frozenset().union(*(get_statistic(name).needs for name in names)) | {"routes"}
    states: dict[str, State] = {}
    for batch in capture(model, anatomy, tokenizer, prompts, CaptureOptions(), needs):
        assert batch.route is not None
        for name in names:
            statistic = get_statistic(name)
            state = states.get(name) or statistic.empty(batch.route.shape)
            for part in batch.layers if statistic.reads_layers else (batch.route,):
                state = statistic.grow(state, part)
            states[name] = state
    return Inputs(anatomy.shape, states, {name: anatomy.slot(name) for name in reads & set(SLOTS)})


@pytest.fixture(scope="module")
def ladder(root: Path) -> Iterator[dict[str, Inputs]]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    register()
    steps = root / "data" / "checkpoints"
    tokenizer = AutoTokenizer.from_pretrained(steps / "free/step-06000")
    lines = (root / "data/prompts/four-tasks.jsonl").read_text().splitlines()[::EVERY_NTH]
    prompts = [Prompt(**json.loads(line)) for line in lines]
    own, former, other = (
        AutoModelForCausalLM.from_pretrained(steps / name).eval()
        for name in ("free/step-06000", "free/step-03000", "aux/step-06000")
    )
    models = (own, renamed(own), noisy(own, 0.01), noisy(own, 0.1), former, other)
    names = ("itself", *RUNGS, *BESIDE)
    yield {name: inputs(model, tokenizer, prompts) for name, model in zip(names, models, strict=True)}
    torch.set_num_threads(before)


def answer(ladder: dict[str, Inputs], rung: str, name: str, knobs: dict[str, Any], **without: Any) -> Result:
    measure = dataclasses.replace(get(name), **without)
    sides = [
        dataclasses.replace(
            ladder[one],
            states={read: state for read, state in ladder[one].states.items() if read in measure.reads},
            weights={read: slot for read, slot in ladder[one].weights.items() if read in measure.reads},
        )
        for one in ("itself", rung)
    ]
    return evaluate(measure, tuple(sides), knobs)


VALUES = {"interval_reason": "not asked", "null": None, "null_reason": "not asked"}
"""An answer without what takes most of its time."""


def mean(values: np.ndarray) -> float:
    return float(np.nanmean(np.abs(values)))


DISTANCES: list[tuple[str, dict[str, Any], Callable[[np.ndarray], float]]] = [
    ("load_difference", {"matching": "co-selection"}, mean),
    ("routing_distance", {}, mean),
    ("prompt_difference", {}, mean),
    ("router_row_difference", {}, mean),
    ("jacobian_drift", {}, mean),
    ("subspace_drift", {}, mean),
    *(
        ("routing_agreement", {"what": what}, lambda values: mean(1 - values))
        for what in ("jaccard", "top-1", "weighted", "same", "same so far")
    ),
    *(
        ("expert_matching", {"evidence": evidence, "show": "matched"}, lambda values: mean(1 - values))
        for evidence in ("co-selection", "router row", "centroid", "jacobian", "output", "mix")
    ),
]
IDS = ["-".join([name, *(str(v) for k, v in knobs.items() if k != "show")]) for name, knobs, _ in DISTANCES]


@pytest.mark.parametrize(("name", "knobs", "distance"), DISTANCES, ids=IDS)
def test_every_distance_climbs_the_ladder(name, knobs, distance, ladder):
    found = [distance(answer(ladder, rung, name, knobs, **VALUES).values) for rung in RUNGS]
    # Renamed, the experts' outputs are added up in another order: float32 keeps 7 digits of the hidden states.
    assert found[0] == pytest.approx(0, abs=1e-5)
    assert 10 * found[0] < found[1] < found[2]
    for beside in BESIDE:
        assert np.isfinite(distance(answer(ladder, beside, name, knobs, **VALUES).values))


@pytest.mark.parametrize("name", PAIRED)
def test_every_rung_has_an_interval_or_says_why_not(name, ladder):
    for rung in RUNGS[1:]:
        result = answer(ladder, rung, name, {}, null=None, null_reason="not asked")
        if isinstance(result.interval, Reason):
            assert result.interval.reason == get(name).interval_reason or result.interval.reason.startswith("exact: ")
            continue
        assert isinstance(result.interval, Interval)
        known = ~np.isnan(result.interval.low)
        # A prompt of few tokens, or that nothing sets apart, has none.
        assert known.all() or (get(name).of_each_prompt and "NaN" in result.interval.how)
        assert ((result.interval.low <= result.values) & (result.values <= result.interval.high))[known].all()


def test_the_experts_of_a_renamed_checkpoint_are_found_again_in_every_layer_by_every_evidence(ladder):
    rows = [ladder[name].weights["router_weight"] for name in ("itself", "renamed")]
    truth = np.array([[int((b == row).all(-1).nonzero()) for row in a] for a, b in zip(*rows, strict=True)])
    for evidence in ("co-selection", "router row", "centroid", "jacobian", "output", "mix"):
        found = answer(ladder, "renamed", "expert_matching", {"evidence": evidence}, **VALUES)
        assert (found.arrays["partner"] == truth).all(), evidence


def test_a_little_noise_differs_beyond_chance_in_fewer_places_than_another_router(ladder):
    """The exchange of both sides finds another router in every prompt, and 1 % of noise in none."""
    beyond = [
        answer(ladder, rung, "prompt_difference", {}).facts["prompts that differ beyond chance (max-statistic)"]
        for rung in ("renamed", "1 %", "another router, same seed")
    ]
    assert beyond == ["0 of 16", "0 of 16", "16 of 16"]
