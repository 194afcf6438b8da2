"""Planted experts whose alignment, linear share, spectrum and likeness are known beforehand."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.func import jacrev, vmap
from torch.nn import functional as F

from analysis.common_tokens import common_tokens
from analysis.errors import BadKnob
from analysis.expert import Expert
from analysis.inference import evaluate
from analysis.measure import Inputs, get

HIDDEN, MODEL = 4, 5
WEIGHTS = ("gate_weight", "up_weight", "down_weight")


def silu(gate, up):
    return F.silu(gate) * up


def random_experts(phi=silu, count=6, hidden=HIDDEN, model=MODEL, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = (count, hidden, model)
    gate, up = torch.randn(2, *size, dtype=torch.float64, generator=generator)
    down = torch.randn(count, model, hidden, dtype=torch.float64, generator=generator)
    return [Expert(g, u, d, phi) for g, u, d in zip(gate, up, down, strict=True)]


def planted(world, own, change=lambda batch: batch, seed=0, shape=None):
    """`Inputs` of one model whose three layers all have these experts, and its batches."""
    batches = []
    for batch in world.layers(seed, shape or world.SHAPE, lengths=(20,) * 16):
        x = batch.expert_input.double()
        gate_in, up_in = world.preactivations(own, x, batch.indices, batch.served)
        more = {"expert_input": x, "router_input": x, "gate_in": gate_in, "up_in": up_in}
        batches.append(change(dataclasses.replace(batch, experts=own, **more)))
    weights = {f"{p}_weight": torch.stack([getattr(e, p) for e in own]).expand(3, -1, -1, -1) for p in PARTS}
    names = ("slope_sums", "output_sums", "centroid_sums", "routed_rows", "common_rows")
    return Inputs(batches[0].shape, {n: world.state_of(n, batches) for n in names}, weights), batches


PARTS = ("gate", "up", "down")


def asked(name, side, **knobs):
    return evaluate(get(name), (side,), knobs)


def off(values):
    return values[..., ~np.eye(values.shape[-1], dtype=bool)]


def test_alignment_is_the_cosine_of_what_autograd_finds_over_the_right_tokens(world):
    own = random_experts()
    side, batches = planted(world, own)
    batch, rows = batches[1], common_tokens(batches[1])[0]
    for tokens in ("common", "served"):
        flat = []
        for index, expert in enumerate(own):
            mine = rows if tokens == "common" else ((batch.indices == index) & batch.served).any(-1)
            each = vmap(jacrev(lambda y, e=expert: e(y[None])[0]))(batch.expert_input[mine])
            flat.append(each.mean(0).flatten())
        expected = F.cosine_similarity(torch.stack(flat)[:, None], torch.stack(flat)[None], dim=-1)
        found = asked("jacobian_alignment", side, tokens=tokens)
        np.testing.assert_allclose(found.values[1], expected.numpy(), rtol=0, atol=1e-7)
        assert found.facts["pairs"] == 45 and found.facts["method"] == "exact"
        assert found.facts["mean over pairs"] == pytest.approx(off(found.values).mean(), abs=1e-12)


def test_the_same_function_in_other_weights_is_aligned_and_its_negative_is_opposed(world):
    own = random_experts()
    order = torch.tensor([2, 0, 3, 1])
    scale = torch.tensor([0.5, 2.0, 3.0, 1.5]).double()
    a = own[0]
    own[1] = Expert(a.gate[order], a.up[order] * scale[:, None], a.down[:, order] / scale, silu)
    own[2] = Expert(a.gate, a.up, -a.down, silu)
    side, _ = planted(world, own)
    for tokens in ("common", "each"):
        found = asked("jacobian_alignment", side, tokens=tokens).values
        np.testing.assert_allclose(found[:, 0, 1], 1, atol=1e-12)
        np.testing.assert_allclose(found[:, 0, 2], -1, atol=1e-12)
        assert np.abs(found[:, 0, 3:]).max() < 0.95


def test_experts_that_write_to_different_dimensions_are_not_aligned(world):
    own = random_experts(count=6)
    for index, expert in enumerate(own):
        expert.down[torch.arange(MODEL) % 2 == index % 2] = 0
    found = asked("jacobian_alignment", planted(world, own)[0]).values
    np.testing.assert_allclose(found[:, 0::2][:, :, 1::2], 0, atol=1e-15)


def test_a_dead_expert_is_nan_over_served_tokens_and_known_over_common_ones(world):
    def without_3(batch):
        return dataclasses.replace(batch, served=batch.served & (batch.indices != 3))

    side, _ = planted(world, random_experts(), without_3)
    found = asked("jacobian_alignment", side, tokens="served")
    assert np.isnan(found.values[:, 3]).all() and np.isnan(found.values[:, :, 3]).all()
    assert found.facts["pairs"] == 3 * 10 and found.facts["fewest tokens of a mean"] == 0
    assert any(c.startswith("NaN: 3 expert(s)") for c in found.caveats)
    for tokens in ("common", "each"):
        assert np.isfinite(asked("jacobian_alignment", side, tokens=tokens).values).all()


def test_a_sketch_along_every_direction_is_exact_and_says_so(world):
    side, _ = planted(world, random_experts())
    exact, sketch = (asked("jacobian_alignment", side, method=method) for method in ("exact", "sketch"))
    np.testing.assert_allclose(sketch.values, exact.values, atol=1e-10)  # 5 orthogonal probes of 5 dimensions
    assert sketch.facts["method"] == "exact" and "largest standard error of the sketch" not in sketch.facts


def test_shuffled_outputs_are_no_copies_any_more(world):
    twins = random_experts(count=1) * 6
    found = asked("jacobian_alignment", planted(world, twins)[0], baseline="shuffled outputs")
    np.testing.assert_allclose(found.values, 1, atol=1e-12)
    low, mean, high = (off(getattr(found.null, part)) for part in ("low", "mean", "high"))
    assert (high < 0.999).all() and (low < 0).all()
    np.testing.assert_allclose(mean, 0, atol=0.1)


@pytest.mark.slow
def test_unrelated_experts_scatter_by_one_over_d(world):
    found = []
    for seed in range(12):
        side, _ = planted(world, random_experts(seed=seed), seed=seed)
        found.append(off(asked("jacobian_alignment", side).values))
    assert np.std(np.concatenate(found)) == pytest.approx(1 / MODEL, rel=0.1)
    null = asked("jacobian_alignment", side).null
    assert null.high[0, 1] == pytest.approx(1.96 / MODEL)


@pytest.mark.slow
def test_a_linear_expert_is_linear_and_one_whose_slope_flips_is_its_squared_mean_sign(world):
    own = random_experts(phi=lambda gate, up: gate + 2 * up)
    found = asked("jacobian_linear_share", planted(world, own)[0])
    np.testing.assert_allclose(found.values, 1, atol=1e-12)
    flips = random_experts(phi=lambda gate, up: up.abs() + 0 * gate, hidden=1)
    shape = dataclasses.replace(world.SHAPE, hidden=1)
    side, batches = planted(world, flips, shape=shape)
    for layer, batch in enumerate(batches):
        x = batch.expert_input[common_tokens(batch)[0]]
        for index, expert in enumerate(flips):
            share, n = float((x @ expert.up[0]).sign().mean() ** 2), len(x)
            plain = asked("jacobian_linear_share", side, corrected=False).values[layer, index]
            assert plain == pytest.approx(share, abs=1e-12)
            corrected = asked("jacobian_linear_share", side).values[layer, index]
            assert corrected == pytest.approx((share * n - 1) / (n - 1), abs=1e-12)


class NoGate:
    def __len__(self):
        return 3

    def __getitem__(self, layer):
        raise AssertionError("experts without a gate were asked for it")


def test_experts_without_a_gate_are_compared_without_one(world):
    own = [dataclasses.replace(e, gate=None) for e in random_experts(phi=lambda _, up: up.relu().square())]
    x = world.layers(lengths=(20,) * 16)[1]
    rows = common_tokens(x)[0]
    flat = torch.stack([e.mean_jacobian(x.expert_input.double()[rows]).flatten() for e in own])
    batches = [
        dataclasses.replace(b, experts=own, gate_in=None, expert_input=b.expert_input.double())
        for b in world.layers(lengths=(20,) * 16)
    ]
    weights = {f"{p}_weight": torch.stack([getattr(e, p) for e in own]).expand(3, -1, -1, -1) for p in ("up", "down")}
    states = {"slope_sums": world.state_of("slope_sums", batches)}
    side = Inputs(batches[0].shape, states, weights | {"gate_weight": NoGate()})
    expected = F.cosine_similarity(flat[:, None], flat[None], dim=-1)
    np.testing.assert_allclose(asked("jacobian_alignment", side).values[1], expected.numpy(), atol=1e-12)
    for name in ("jacobian_linear_share", "jacobian_spectrum"):
        assert np.isfinite(asked(name, side).values).all()


def test_a_mean_over_no_tokens_and_over_one_token_is_nan_with_a_reason(world):
    side, batches = planted(world, random_experts())
    one = common_tokens(batches[0])[0][:1]
    states = {"slope_sums": world.state_of("slope_sums", [world.take(b, one) for b in batches])}
    few = dataclasses.replace(side, states=states)
    found = asked("jacobian_linear_share", few)
    assert np.isnan(found.values).all() and "NaN: fewer than two common tokens." in found.caveats


def test_a_projection_on_r_dimensions_has_r_directions(world):
    q = torch.linalg.qr(torch.randn(MODEL, MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    own = [
        Expert(q[:HIDDEN] * (torch.arange(HIDDEN) < rank)[:, None], q[:HIDDEN] * 0, q[:HIDDEN].T, lambda g, u: g + u)
        for rank in (1, 2, 3, 4, 4, 4)
    ]
    side, _ = planted(world, own)
    for summary in ("participation", "entropy"):
        found = asked("jacobian_spectrum", side, summary=summary).values
        np.testing.assert_allclose(found, np.tile([1, 2, 3, 4, 4, 4], (3, 1)), rtol=1e-9)
    found = asked("jacobian_spectrum", side, summary="first").values
    np.testing.assert_allclose(found[0], [1, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4], rtol=1e-9)


def test_the_spectrum_is_that_of_the_dense_mean_jacobian(world):
    own = random_experts()
    side, batches = planted(world, own)
    x = batches[2].expert_input[common_tokens(batches[2])[0]]
    energy = torch.linalg.svdvals(own[3].mean_jacobian(x)) ** 2
    share = energy / energy.sum()
    expected = {
        "participation": 1 / share.square().sum(),
        "entropy": torch.special.entr(share).sum().exp(),
        "first": share.max(),
    }
    for summary, value in expected.items():
        found = asked("jacobian_spectrum", side, summary=summary).values[2, 3]
        assert found == pytest.approx(float(value), rel=1e-6)


def test_outputs_of_copies_are_alike_and_of_opposites_opposed(world):
    own = random_experts()
    own[1] = own[0]
    own[2] = dataclasses.replace(own[0], down=-own[0].down)
    side, _ = planted(world, own)
    for of in ("same token", "mean output"):
        cosine = asked("output_similarity", side, likeness="cosine", of=of).values
        angular = asked("output_similarity", side, of=of).values
        np.testing.assert_allclose(cosine[:, 0, 1], 1, atol=1e-12)
        np.testing.assert_allclose(cosine[:, 0, 2], -1, atol=1e-12)
        np.testing.assert_allclose(angular[:, 0, 1], 1, atol=1e-7)  # arccos near 1
        np.testing.assert_allclose(angular[:, 0, 2], 0, atol=1e-7)
        np.testing.assert_allclose(cosine[:, np.arange(6), np.arange(6)], 1, atol=0)


def test_a_silent_expert_is_like_nobody(world):
    own = random_experts()
    own[4] = dataclasses.replace(own[4], down=torch.zeros(MODEL, HIDDEN).double())
    side, _ = planted(world, own)
    found = asked("output_similarity", side)
    assert np.isnan(found.values[:, 4]).all() and found.facts["pairs"] == 30
    assert "NaN: an expert whose output is 0 has no direction." in found.caveats
    assert np.isnan(asked("jacobian_alignment", side).values[:, 4]).all()


def test_right_angles_are_half_way(world):
    own = random_experts()
    for index, expert in enumerate(own):
        expert.down[torch.arange(MODEL) % 2 == index % 2] = 0
    found = asked("output_similarity", planted(world, own)[0]).values
    np.testing.assert_allclose(found[:, 0::2][:, :, 1::2], 0.5, atol=1e-12)


@pytest.mark.parametrize("representation", ["subspace overlap", "centroid cosine"])
def test_the_map_names_the_copy_and_not_those_that_only_share_tokens(world, representation):
    own = random_experts()
    own[4] = own[1]

    def together(batch):
        # Experts 0 and 2 serve the same tokens and nobody else does.
        pair = torch.tensor([[0, 2], [1, 3], [4, 5]])
        indices = pair[torch.arange(len(batch.keys)) % 3]
        served = torch.ones_like(batch.served)
        gate_in, up_in = world.preactivations(own, batch.expert_input, indices, served)
        same = {"weights": torch.full_like(batch.weights, 0.5), "served": served}
        return dataclasses.replace(batch, indices=indices, gate_in=gate_in, up_in=up_in, **same)

    side, _ = planted(world, own, together)
    found = asked("redundancy_map", side, representation=representation)
    names = list(found.axes[0].labels)
    assert len(names) == 45 and found.values.shape == (45, 2)
    copy = found.values[names.index("2/E1-E4")]
    assert copy[1] == pytest.approx(1, abs=1e-12) and copy[0] < 0.9
    sharing = found.values[names.index("2/E0-E2")]
    assert sharing[0] == pytest.approx(1, abs=1e-12) and sharing[1] < 0.9
    assert found.facts["candidate 1"].split(":")[0] in {f"{label}/E1-E4" for label in "123"}
    assert found.facts["merge candidates"] == int((found.values[:, 1] >= 0.5).sum()) >= 3
    for start in (0, 15, 30):
        assert (np.diff(found.values[start : start + 15, 1]) <= 0).all()


@pytest.mark.parametrize("representation", ["subspace overlap", "centroid cosine"])
def test_the_map_agrees_with_the_measures_it_is_made_of(world, representation):
    side, _ = planted(world, random_experts())
    found = asked("redundancy_map", side, layer=1, representation=representation)
    same = asked("jacobian_alignment", side).values[1]
    near = asked("subspace_overlap", side).values[1]
    if representation == "centroid cosine":
        sums = {name: side.centroid_sums[name].sum(0)[1] for name in ("input", "served", "seen_input", "seen")}
        mean = sums["input"] / sums["served"][:, None] - sums["seen_input"] / sums["seen"]
        near = F.cosine_similarity(mean[:, None], mean[None], dim=-1).numpy()
    for name, (x, y) in zip(found.axes[0].labels, found.values, strict=True):
        first, second = (int(e) for e in name.removeprefix("2/E").split("-E"))
        assert (x, y) == pytest.approx((near[first, second], same[first, second]), abs=1e-12)


def test_the_map_refuses_what_is_not_there(world):
    side, _ = planted(world, random_experts())
    for knobs, right in (({"layer": 3}, "are 0 to 2"), ({"layer": -2}, "-1 to"), ({"threshold": 1.5}, "-1 to 1")):
        with pytest.raises(BadKnob, match=right):
            asked("redundancy_map", side, **knobs)
