"""Sums and samples of slopes, outputs, centroids, scores and gradients, against loops and autograd."""

import dataclasses
import math

import pytest
import torch
from torch.func import jacrev
from torch.nn import functional as F

from analysis.common_tokens import ONE_IN, common_tokens
from analysis.gate_activity import ACTIVITIES, gate_activity
from analysis.sampling import ROWS, token_hash
from analysis.slots import Shape
from analysis.token_jacobians import token_probes

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(scope="module")
def batch(world):
    """One layer, in float64 throughout."""
    found = world.layers(lengths=(20,) * 16)[1]
    own = [expert.to(torch.float64) for expert in found.experts]
    x = found.expert_input.double()
    gate_in, up_in = world.preactivations(own, x, found.indices, found.served)
    floats = {n: getattr(found, n).double() for n in ("logits", "probabilities", "weights", "task_gradient")}
    inputs = {"expert_input": x, "router_input": x, "gate_in": gate_in, "up_in": up_in}
    return dataclasses.replace(found, experts=own, **inputs, **floats)


def served_rows(batch, expert):
    return ((batch.indices == expert) & batch.served).any(-1)


def layer_of(state, array):
    """Summed over blocks, of the one layer that was seen."""
    return state[array].sum(0)[1]


def test_an_eighth_of_the_tokens_is_common_and_a_token_is_common_wherever_it_is_seen(world):
    batch = world.layers(lengths=(400,) * 16)[0]
    rows, hashes = common_tokens(batch)
    expected = len(batch.keys) / ONE_IN
    assert abs(len(rows) - expected) < 4 * math.sqrt(expected)
    assert torch.equal(hashes, token_hash(batch.prompts, batch.keys)[rows])
    order = torch.randperm(len(batch.keys), generator=torch.Generator().manual_seed(0))
    again, _ = common_tokens(world.take(batch, order))
    assert torch.equal(order[again].sort().values, rows)


def test_slopes_are_the_derivatives_of_phi(world, batch):
    state = world.state_of("slope_sums", [batch])
    rows, _ = common_tokens(batch)
    assert int(layer_of(state, "common")) == len(rows) > 20
    for index, expert in enumerate(batch.experts):
        for arrays, tokens in ((("gate", "up"), served_rows(batch, index)), (("common_gate", "common_up"), rows)):
            z = batch.expert_input[tokens] @ expert.gate.T
            u = batch.expert_input[tokens] @ expert.up.T
            s = z.sigmoid()
            torch.testing.assert_close(
                layer_of(state, arrays[0])[index], (u * s * (1 + z * (1 - s))).sum(0), rtol=1e-6, atol=1e-6
            )
            torch.testing.assert_close(layer_of(state, arrays[1])[index], F.silu(z).sum(0), rtol=1e-6, atol=1e-6)
        assert int(layer_of(state, "served")[index]) == int(served_rows(batch, index).sum())
    assert (state["common_up"][:, [0, 2]] == 0).all()


def test_products_are_those_of_each_tokens_jacobians_along_its_probe(world, batch):
    state = world.state_of("slope_sums", [batch])
    rows, hashes = common_tokens(batch)
    expected, directions = torch.zeros(6, 6).double(), token_probes(world.SHAPE.model, hashes)
    for row, v in zip(rows.tolist(), directions, strict=True):
        x = batch.expert_input[row]
        images = torch.stack([jacrev(lambda y, e=e: e(y[None])[0])(x) @ v for e in batch.experts])
        expected += images @ images.T
    torch.testing.assert_close(layer_of(state, "products"), expected, **CLOSE)


def test_energy_is_that_of_each_tokens_jacobian(world, batch):
    state, x = world.state_of("slope_sums", [batch]), batch.expert_input[common_tokens(batch)[0]]
    for expert, found in zip(batch.experts, layer_of(state, "energy"), strict=True):
        jacobians = torch.stack([jacrev(lambda y, e=expert: e(y[None])[0])(row) for row in x])
        torch.testing.assert_close(found, jacobians.square().sum(), **CLOSE)


def test_experts_without_a_gate_have_slopes_by_up_alone(world, batch):
    bare = [dataclasses.replace(e, gate=None, phi=lambda _, u: u.relu().square()) for e in batch.experts]
    changed = dataclasses.replace(batch, experts=bare, gate_in=None)
    state = world.state_of("slope_sums", [changed])
    rows, _ = common_tokens(batch)
    u = batch.expert_input[rows] @ bare[2].up.T
    torch.testing.assert_close(layer_of(state, "common_up")[2], (2 * u.relu()).sum(0), **CLOSE)
    assert (state["gate"] == 0).all() and (state["common_gate"] == 0).all()
    found = gate_activity(bare[2], None, u)[:, ACTIVITIES.index("mean")]
    torch.testing.assert_close(found, u.relu().square().mean(-1), **CLOSE)
    outputs = world.state_of("output_sums", [changed])
    torch.testing.assert_close(layer_of(outputs, "common_output")[2], bare[2](batch.expert_input[rows]).sum(0), **CLOSE)


def test_outputs_are_summed_with_their_bias_over_the_tokens_they_belong_to(world, batch):
    bias = torch.arange(5).double()
    own = [dataclasses.replace(e, down_bias=bias * i) for i, e in enumerate(batch.experts)]
    state = world.state_of("output_sums", [dataclasses.replace(batch, experts=own)])
    rows, _ = common_tokens(batch)
    for index, expert in enumerate(own):
        mine = expert(batch.expert_input[served_rows(batch, index)]).sum(0)
        torch.testing.assert_close(layer_of(state, "output")[index], mine, rtol=1e-6, atol=1e-5)
        every = expert(batch.expert_input[rows]).sum(0)
        torch.testing.assert_close(layer_of(state, "common_output")[index], every, **CLOSE)


def test_likeness_of_outputs_is_summed_token_by_token_and_an_output_of_zero_has_none(world, batch):
    own = list(batch.experts)
    own[4] = dataclasses.replace(own[4], down=torch.zeros_like(own[4].down))
    own[5] = dataclasses.replace(own[3], down=-own[3].down)
    state = world.state_of("output_sums", [dataclasses.replace(batch, experts=own)])
    rows, _ = common_tokens(batch)
    x = batch.expert_input[rows]
    expected = F.cosine_similarity(own[0](x), own[1](x), dim=-1)
    torch.testing.assert_close(layer_of(state, "cosine")[0, 1], expected.sum(), **CLOSE)
    torch.testing.assert_close(layer_of(state, "angular")[0, 1], (1 - expected.acos() / math.pi).sum(), **CLOSE)
    assert float(layer_of(state, "cosine")[3, 5]) == pytest.approx(-len(rows), abs=1e-9)
    assert float(layer_of(state, "angular")[3, 3]) == len(rows)
    pairs = layer_of(state, "pairs")
    assert (pairs[4] == 0).all() and (layer_of(state, "cosine")[4] == 0).all()
    assert int(pairs[0, 1]) == len(rows)


def test_centroids_by_loop(world, batch):
    state = world.state_of("centroid_sums", [batch])
    for index in range(6):
        chosen = (batch.indices == index) & batch.served
        rows, g = chosen.any(-1), (batch.weights * chosen).sum(-1)
        x = batch.router_input
        torch.testing.assert_close(layer_of(state, "input")[index], x[rows].sum(0), **CLOSE)
        torch.testing.assert_close(layer_of(state, "weighted_input")[index], (g[:, None] * x).sum(0), **CLOSE)
        torch.testing.assert_close(layer_of(state, "weight")[index], g.sum(), **CLOSE)
        assert int(layer_of(state, "served")[index]) == int(rows.sum())
    torch.testing.assert_close(layer_of(state, "seen_input"), x.sum(0), **CLOSE)
    assert int(layer_of(state, "seen")) == len(batch.keys)


def test_the_answers_of_a_gate_by_hand(batch):
    z = torch.tensor([[1.0, -2.0, 0.0, 3.0]]).double()
    silu = [value / (1 + math.exp(-value)) for value in (1, -2, 0, 3)]
    expected = {
        "mean": sum(silu) / 4,
        "norm": math.sqrt(sum(s * s for s in silu)),
        "mean_size": sum(map(abs, silu)) / 4,
        "input_norm": math.sqrt(14),
        "positive": 0.5,
    }
    found = gate_activity(batch.experts[0], z, torch.full((1, 4), 17.0).double())[0]
    torch.testing.assert_close(found, torch.tensor([expected[a] for a in ACTIVITIES], dtype=torch.float64), **CLOSE)


def test_pairs_hold_each_served_token_with_its_own_score_and_gate(world, batch):
    state = world.state_of("score_gate_pairs", [batch])
    hashes = token_hash(batch.prompts, batch.keys)
    for index, expert in enumerate(batch.experts):
        rows = served_rows(batch, index).nonzero()[:, 0]
        rows = rows[hashes[rows].argsort()][:ROWS]
        kept = state["hash"][1, index, : len(rows)]
        assert torch.equal(kept, hashes[rows])
        x = batch.expert_input[rows]
        expected = gate_activity(expert, *expert.preactivations(x)).float()
        torch.testing.assert_close(state["activity"][1, index, : len(rows)], expected)
        torch.testing.assert_close(state["logit"][1, index, : len(rows)], batch.logits[rows, index].float())
        torch.testing.assert_close(
            state["probability"][1, index, : len(rows)], batch.probabilities[rows, index].float()
        )
        torch.testing.assert_close(state["size"][1, index, : len(rows)], x.norm(dim=-1).float())
        assert state["logit"][1, index, len(rows) :].isnan().all()


def test_tokens_hold_every_expert_of_the_common_tokens(world, batch):
    state = world.state_of("score_gate_tokens", [batch])
    rows, hashes = common_tokens(batch)
    rows = rows[hashes.argsort()]
    count = len(rows)
    x = batch.expert_input[rows]
    for index, expert in enumerate(batch.experts):
        expected = gate_activity(expert, *expert.preactivations(x)).float()
        torch.testing.assert_close(state["activity"][1, :count, index], expected)
        chosen = (batch.indices[rows] == index).any(-1)
        assert torch.equal(state["selected"][1, :count, index], chosen.to(torch.int8))
    torch.testing.assert_close(state["logits"][1, :count], batch.logits[rows].float())
    assert (state["selected"][1, count:] == -1).all() and state["logits"][1, count:].isnan().all()


def test_gradient_rows_are_the_tokens_of_lowest_hash(world, batch):
    state = world.state_of("gradient_rows", [batch])
    order = token_hash(batch.prompts, batch.keys).argsort()
    count = len(order)
    torch.testing.assert_close(state["task"][1, :count], batch.task_gradient[order].float())
    torch.testing.assert_close(state["input"][1, :count], batch.router_input[order].float())
    expected = F.one_hot(batch.indices[order], 6).sum(1).to(torch.int8)
    assert torch.equal(state["selected"][1, :count], expected)


OLMOE = Shape(tuple(map(str, range(16))), experts=64, top_k=8, model=2048, hidden=1024)


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        ("slope_sums", 279),
        ("output_sums", 349),
        ("centroid_sums", 271),
        ("score_gate_pairs", 13),
        ("score_gate_tokens", 8),
        ("gradient_rows", 74),
    ],
)
def test_what_olmoe_costs(name, megabytes):
    from analysis.statistic import get

    assert get(name).bytes(OLMOE, prompts=10_000) / 1e6 == pytest.approx(megabytes, abs=1)
