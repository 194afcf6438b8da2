"""Experts merged and routers swapped: copies change nothing, and weights written by hand give the same model."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch.testing import assert_close

from analysis.merging import matched_neurons, merged
from backend.adapters import Unsupported, adapt
from backend.edits import applied, edit_from
from backend.errors import Refusal
from tests.backend import tiny_moe
from tests.backend.edited import edited, run, same, state, subject, traits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
FAMILIES = ("olmoe", "mixtral", "deepseek_v3", "gpt_oss", "lab_loss_free")  # gpt_oss: interleaved, transposed, biases
PARTS = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


def merge(model, first: int = 1, second: int = 4):
    return edit_from({"kind": "merge", "layer": adapt(model).shape.layers[-1], "first": first, "second": second})


@torch.no_grad()
def copied(model, first: int, second: int) -> torch.Tensor:
    """Make the second expert of the last layer the first with its neurons in another order; the order."""
    layer = adapt(model).layers[-1]
    one, other = layer.expert(first), layer.expert(second)
    order = torch.randperm(one.up.shape[0], generator=torch.Generator().manual_seed(5))
    for part in PARTS:
        own = getattr(one, part)
        if own is not None:
            getattr(other, part).copy_(own if part == "down_bias" else own[:, order] if part == "down" else own[order])
    return order


@pytest.mark.parametrize("family", FAMILIES)
def test_merging_an_expert_with_its_copy_changes_nothing(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    order = copied(model, 1, 4)
    layer = adapt(model).layers[-1]
    assert torch.equal(matched_neurons(layer.expert(1), layer.expert(4)), order.argsort())
    plain = run(model)
    assert plain.usage[-1, 1] and plain.usage[-1, 4]
    found = edited(model, merge(model), usage=plain.usage)
    assert torch.equal(found.chosen, plain.chosen)
    # the second slot's neurons now stand in the first's order, and a sum in another order rounds otherwise
    assert_close(found.loss, plain.loss, atol=2e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("share", (0.0, 0.3, 0.8, 1.0))
def test_a_copy_gives_the_expert_back_to_the_last_bit(share: float) -> None:
    model = tiny_moe.build(tiny_moe.gpt_oss)
    copied(model, 1, 4)
    layer = adapt(model).layers[-1]
    made, one = merged(layer.expert(1), layer.expert(4), share), layer.expert(1)
    assert all(torch.equal(getattr(made, part), getattr(one, part)) for part in PARTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_slots_hold_the_mean_by_usage_of_matched_neurons(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    usage = torch.zeros(len(adapt(model).layers), tiny_moe.EXPERTS)
    usage[-1, 1], usage[-1, 4] = 30, 10
    layer = adapt(model).layers[-1]
    first, second = (layer.expert(e).to(torch.float64) for e in (1, 4))
    order = matched_neurons(first, second)
    with applied(merge(model).changes(subject(model, usage))):
        held = [layer.expert(e) for e in (1, 4)]
        for one in held:
            assert_close(one.up.double(), 0.75 * first.up + 0.25 * second.up[order])
            assert_close(one.down.double(), 0.75 * first.down + 0.25 * second.down[:, order])
    twin = copy.deepcopy(model)
    with applied(merge(model).changes(subject(model, usage))):
        twin.load_state_dict(model.state_dict())
    assert same(edited(model, merge(model), usage=usage), run(twin)) and not same(run(twin), run(model))


def test_neurons_are_matched_and_not_averaged_as_they_lie() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    layer = adapt(model).layers[-1]
    order = copied(model, 1, 4)
    x = torch.randn(30, tiny_moe.MODEL, generator=torch.Generator().manual_seed(2))
    truth = layer.expert(1)(x)
    as_they_lie = (layer.expert(1).down + layer.expert(4).down) / 2
    assert not torch.equal(order, torch.arange(len(order)))
    assert not torch.allclose(as_they_lie, layer.expert(1).down)
    assert_close(merged(layer.expert(1), layer.expert(4), 0.5)(x), truth)


def test_what_a_merge_would_save_is_one_expert_and_its_row() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    saved = merge(model).saved(subject(model))
    assert saved is not None and saved.parameters == 3 * tiny_moe.HIDDEN * tiny_moe.MODEL + tiny_moe.MODEL
    assert saved.bytes == 4 * saved.parameters
    with pytest.raises(Refusal, match="named twice"):
        edited(model, merge(model, 2, 2))


def routers(name: str = "other"):
    return edit_from({"kind": "routers", "checkpoint": name})


@pytest.mark.parametrize("family", ("olmoe", "deepseek_v3", "lab_kmeans"))
def test_swapped_routers_are_the_model_whose_router_tensors_were_copied(family: str) -> None:
    model, other = (tiny_moe.build(tiny_moe.FAMILIES[family], seed=seed) for seed in (0, 1))
    twin, donor = copy.deepcopy(model), other.state_dict()
    twin.load_state_dict({n: donor[n] if ".gate." in n else t for n, t in model.state_dict().items()})
    before = run(other)
    found = edited(model, routers(), other=adapt(other))
    assert same(found, run(twin)) and not same(found, run(model))
    assert same(run(other), before)
    assert same(edited(model, routers(), other=adapt(copy.deepcopy(model))), run(model))


def test_routers_of_another_rule_come_with_their_rule() -> None:
    model, other = tiny_moe.build(tiny_moe.FAMILIES["lab_softmax_aux"]), tiny_moe.build(tiny_moe.FAMILIES["lab_kmeans"])
    found = edited(model, routers(), other=adapt(other))
    with applied(routers().changes(subject(model, other=adapt(other)))):
        held = [type(layer.router).__name__ for layer in adapt(model).layers]
    assert set(held) == {"KMeansRouter"} and not same(found, run(model))


def test_routers_that_do_not_fit_are_refused() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    with pytest.raises(Refusal, match="8 experts and width 32, other 3 MoE layers of 4"):
        edited(model, routers(), other=adapt(tiny_moe.lab("softmax_aux", num_experts=4)))
    with pytest.raises(Unsupported, match="reads something else"):
        edited(model, routers(), other=adapt(tiny_moe.build(tiny_moe.olmoe)))
    with pytest.raises(Refusal, match="not loaded"):
        edited(model, routers())


@pytest.mark.parametrize("family", ("gpt_oss", "lab_kmeans"))
def test_weights_and_modules_are_put_back_bit_for_bit(family: str) -> None:
    model, other = (tiny_moe.build(tiny_moe.FAMILIES[family], seed=seed) for seed in (0, 1))
    plain = run(model)  # first: a lab model keeps the ids of its last pass
    before, about = state(model), traits(model)
    shuffled = routers().random(adapt(model).shape, random.Random(0))
    assert shuffled is not None
    for edit in (merge(model), routers(), shuffled):
        changes = edit.changes(subject(model, other=adapt(other)))
        assert not same(run(model, changes), plain)
        with pytest.raises(RuntimeError, match="half way"), applied(changes):
            raise RuntimeError("half way")
    after = state(model)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert traits(model) == about
