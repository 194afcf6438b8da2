"""A paged model is the model: the same bits in every state and route, each byte read once; refusals that say why."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.errors import GeometryError
from backend import planner, prices
from backend.capture import CaptureOptions, verified
from backend.checkpoints import load
from backend.errors import Conflict, Refusal
from backend.paging.choice import pages, weights_bytes
from backend.paging.lockstep import Lockstep, Walk
from backend.paging.opening import open_paged
from backend.paging.skeleton import Unpageable
from backend.question import ask
from backend.runners import edits, evaluation, sentences
from backend.runners.messages import EditTask, EvaluateTask, ResultReady, SentenceTask, ShardReady, SideFiles
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.paged_files import EVERY, FEW, Machine, read, saved, task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
KINDS = ("olmoe", "mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss", "gemma4_text", "zaya", "cohere2_moe", "granitemoe")
"""Plain, without and with a shared expert, dense layers first, biases; experts in the layer itself, states that go from
layer to layer, a shared expert that is not read, and products that depend on where in memory a matrix begins."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paged")


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_and_route_is_that_of_the_resident_model_to_the_last_bit(
    kind: str, root: Path, tmp_path: Path
) -> None:
    checkpoint = saved(kind, root / kind)
    whole, paged = Machine(tmp_path / "whole", "never"), Machine(tmp_path / "paged", "always")
    asked = task(checkpoint, EVERY if kind == "qwen2_moe" else FEW)
    expected = whole.run(asked)
    assert len(expected) == 2 and len(expected[0][0]) == len(asked.shards[0].statistics)
    assert paged.run(asked) == expected
    files = paged.pager(checkpoint).files
    assert set(files.times.values()) == {1}, "every tensor is read once"
    assert files.bytes == sum(map(files.size, files))
    ours, theirs = (verified(each.residents.get(checkpoint).anatomy) for each in (paged, whole))
    assert ours == theirs is not None


def test_a_first_token_left_out_is_left_out_layer_by_layer_too(root: Path, tmp_path: Path) -> None:
    asked = task(saved("olmoe", root / "olmoe"), FEW)
    less = replace(asked, capture=replace(asked.capture, first_token=False))
    expected = Machine(tmp_path / "whole", "never").run(less)
    assert Machine(tmp_path / "paged", "always").run(less) == expected
    assert expected != Machine(tmp_path / "all", "never").run(asked)


def test_the_lab_model_is_paged_too(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "data" / "checkpoints" / "kmeans" / "step-00000"
    checkpoint = read(folder)
    asked = task(checkpoint, ("prompt_counts", "router_sums", "centroid_sums", "token_routes"))
    expected = Machine(tmp_path / "whole", "never").run(asked)
    assert Machine(tmp_path / "paged", "always").run(asked) == expected


def test_a_second_question_reads_the_layers_once_more_and_nothing_else(root: Path, tmp_path: Path) -> None:
    checkpoint = saved("olmoe", root / "olmoe")
    machine = Machine(tmp_path, "always")
    first = machine.run(task(checkpoint))
    files = machine.pager(checkpoint).files
    outside = {name for name in files if ".layers." not in name}
    assert machine.run(task(checkpoint)) == first
    assert {name for name, times in files.times.items() if times == 1} == outside
    assert set(files.times.values()) == {1, 2}


def test_between_layers_and_afterwards_no_layer_has_weights(root: Path, tmp_path: Path) -> None:
    checkpoint = saved("olmoe", root / "olmoe")
    machine = Machine(tmp_path, "always")
    held = []
    for _ in machine.messages(task(checkpoint)):
        layers = machine.pager(checkpoint).layers
        held.append([not any(p.is_meta for p in layer.parameters()) for layer in layers])
    assert max(map(sum, held)) == 1 and [True, False] in held and [False, True] in held
    assert all(p.is_meta for p in machine.pager(checkpoint).layers.parameters())


@pytest.mark.parametrize("kind", ["olmoe", "deepseek_v3"])
def test_hidden_states_are_the_resident_models_own_and_those_of_the_unsplit_pass_but_for_rounding(
    kind: str, root: Path
) -> None:
    checkpoint = saved(kind, root / kind)
    model: Any = load(checkpoint, "cpu")
    ids = torch.randint(3, 250, (6, 40), generator=torch.Generator().manual_seed(0))
    parts = ids.split(2)

    def hidden(of: Any, part: Tensor) -> Tensor:
        with torch.no_grad():
            return of.model(input_ids=part, use_cache=False).last_hidden_state

    pager = open_paged(checkpoint, "cpu")
    walks = [Walk(partial(hidden, pager.model, part), lambda layer: nullcontext()) for part in parts]
    with Lockstep(list(pager.layers), walks) as lock:
        for walk in walks:
            lock.start(walk)
        for layer in range(len(pager.layers)):
            with pager.held(layer):
                for walk in walks:
                    lock.step(walk)
    assert all(torch.equal(walk.result, hidden(model, part)) for walk, part in zip(walks, parts, strict=True))
    whole = hidden(model, ids)
    assert (torch.cat([walk.result for walk in walks]) - whole).norm() / whole.norm() < 1e-5


def test_routes_that_the_unsplit_pass_changes_are_counted(root: Path, tmp_path: Path) -> None:
    checkpoint = saved("olmoe", root / "olmoe")
    routes = []
    for paging, tokens in (("always", 60), ("never", 4096)):
        machine = Machine(tmp_path / paging, paging)
        asked = task(checkpoint, ("token_routes",), batch_tokens=tokens)
        ready = [message for message in machine.messages(asked) if isinstance(message, ShardReady)]
        states = [machine.arrays.get_state(file) for each in ready for _, file in each.states.values()]
        routes.append(torch.cat([state["indices"].sort(-1).values for state in states if state]))
    assert routes[0].shape == routes[1].shape and routes[0].numel() > 600
    assert int((routes[0] != routes[1]).sum()) == 0, "no two scores of this model are as near as rounding"


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "gpt_oss"])
def test_weights_asked_for_by_name_are_those_of_the_resident_model(kind: str, root: Path, tmp_path: Path) -> None:
    checkpoint = saved(kind, root / kind)
    whole, paged = (Machine(tmp_path, mode).residents.get(checkpoint).anatomy for mode in ("never", "always"))
    names = ["router_weight", "router_bias", "gate_weight", "up_weight", "down_weight"]
    names += ["shared_up_weight"] if whole.shape.shared else []
    for name in names:
        torch.testing.assert_close(paged.weights(name), whole.weights(name), rtol=0, atol=0, equal_nan=True)
        slot, other = paged.slot(name), whole.slot(name)
        torch.testing.assert_close(slot[1], other[1], rtol=0, atol=0, equal_nan=True)


def test_the_router_is_read_without_the_experts(root: Path, tmp_path: Path) -> None:
    checkpoint = saved("mixtral", root / "mixtral")
    machine = Machine(tmp_path, "always")
    machine.residents.get(checkpoint).anatomy.weights("router_weight")
    read_names = [name for name, times in machine.pager(checkpoint).files.times.items() if times]
    assert not [name for name in read_names if ".experts." in name]
    assert len([name for name in read_names if ".gate." in name]) == 2


def test_what_cannot_be_paged_says_why(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Unpageable, match=r"switch_transformers has an encoder and a decoder.*PAGING=never"):
        open_paged(saved("switch_transformers", root / "switch_transformers"), "cpu")
    checkpoint = saved("olmoe", root / "olmoe")
    machine = Machine(tmp_path, "always")
    with pytest.raises(GeometryError, match="a paged model writes no text"):
        machine.run(replace(task(checkpoint), capture=CaptureOptions(generate=2)))
    with pytest.raises(GeometryError, match="a paged model gives no gradients"):
        machine.run(task(checkpoint, ("gradient_rows",)))
    with pytest.raises(Refusal, match=r"is run one layer at a time.*; a typed text would read all of it anew"):
        list(sentences.run(SentenceTask("s", checkpoint, "word", CaptureOptions()), machine.residents))
    edit = EditTask("e", checkpoint, {"kind": "off", "experts": {"0": [1]}}, (), CaptureOptions(), 0)
    with pytest.raises(Refusal, match="an edit would read all of it anew"):
        list(edits.run(edit, machine.residents))
    model = machine.residents.get(checkpoint).model
    with pytest.raises(Unpageable, match="a layer was run that is not in memory"), torch.no_grad():
        model(input_ids=torch.tensor([[1, 2]]))


def test_a_layer_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_olmoe.save(tmp_path / "lacking")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unpageable, match=r"lacks 1 tensors of layer 1, the first of them self_attn.q_proj.weight"):
        Machine(tmp_path / "store", "always").run(task(read(folder)))


def test_files_that_change_between_two_layers_give_no_answer(tmp_path: Path) -> None:
    checkpoint = read(tiny_olmoe.save(tmp_path / "changing"))
    steps = Machine(tmp_path / "store", "always").messages(task(checkpoint))
    next(steps)
    config = tmp_path / "changing" / "config.json"
    time.sleep(0.01)
    config.write_text(config.read_text() + "\n")
    with pytest.raises(Conflict, match="changed"):
        list(steps)


def test_an_adapter_that_lies_about_a_paged_model_fails_before_any_answer(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.adapters.anatomy import AdapterLies
    from backend.adapters.fused import FusedLayer

    checkpoint = saved("olmoe", root / "olmoe")
    true = FusedLayer.down
    monkeypatch.setattr(FusedLayer, "down", lambda self: true(self) * 1.01)
    with pytest.raises(AdapterLies, match="the routed output recomputed"):
        Machine(tmp_path, "always").run(task(checkpoint))


def test_a_measure_that_reads_weights_says_the_same(root: Path, tmp_path: Path) -> None:
    checkpoint = saved("mixtral", root / "mixtral")
    found = []
    for paging in ("never", "always"):
        machine = Machine(tmp_path / paging, paging)
        asked = EvaluateTask("e", "router_cosine", {}, (SideFiles({}, {}, checkpoint),), "model")
        messages = evaluation.run(asked, machine.residents, evaluation.Merged(machine.arrays))
        found += [message.result for message in messages if isinstance(message, ResultReady)]
    assert len(found) == 2 and np.array_equal(found[0].values, found[1].values)


def test_a_paged_checkpoint_is_priced_by_the_layers_that_are_there_at_once(root: Path) -> None:
    class Empty:
        def state_files(self, keys: list[str]) -> dict:
            return {}

        def chunk_keys(self, keys: list[str]) -> set[str]:
            return set()

    many = replace(saved("olmoe", root / "olmoe"), layers=30, memory_bytes=30_000_000_000)
    question = ask("router_cosine", [many], None)
    sizes = [
        planner.plan(question, Empty(), prices.Machine("cpu", budget, paging="auto")).price.memory_bytes
        for budget in (40_000_000_000, 8_000_000_000)
    ]
    assert sizes[0] - sizes[1] == 27_000_000_000


def test_auto_pages_what_does_not_fit(root: Path) -> None:
    checkpoint = saved("olmoe", root / "olmoe")
    size = checkpoint.memory_bytes
    assert [pages(checkpoint, "auto", budget) for budget in (size, size - 1)] == [False, True]
    assert pages(checkpoint, "always", size) and not pages(checkpoint, "never", 0)
    assert not pages(replace(checkpoint, trace="counts"), "always", 0)
    many = replace(checkpoint, layers=30)
    assert weights_bytes(many, "auto", size) == size
    assert weights_bytes(many, "auto", size - 1) == size * 3 // 30


def test_the_setting_is_one_of_three() -> None:
    assert Settings.from_environment({}).paging == "auto"
    assert Settings.from_environment({"MOE_GEOMETRY_PAGING": "always"}).paging == "always"
    with pytest.raises(Refusal, match="MOE_GEOMETRY_PAGING is 'yes'; it must be auto, never or always"):
        Settings.from_environment({"MOE_GEOMETRY_PAGING": "yes"})
