"""Chance of Jacobians at widths where probes are few of many directions: unrelated experts must look unrelated."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from analysis.common_tokens import common_tokens
from analysis.cosines import off_diagonal
from analysis.expert import Expert
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.slots import Shape
from analysis.token_jacobians import drawn_spread, seen, sketched_energy, token_probes

PARTS = ("gate", "up", "down")


def side_of(world, own, shift=0.0, seed=0, lengths=(50,) * 16, shared=None):
    """One layer with these experts, its inputs independent normal rows plus `shift`, the same for all tokens."""
    model, hidden = own[0].down.shape
    wide = 0 if shared is None else shared.down.shape[1]
    shape = Shape(("1",), experts=len(own), top_k=2, model=model, hidden=hidden, shared=wide)
    batch = world.layers(seed, dataclasses.replace(shape, shared=0), lengths=lengths)[0]
    x = batch.expert_input - 0.5 + shift
    gate_in, up_in = world.preactivations(own, x, batch.indices, batch.served)
    more = {"expert_input": x, "router_input": x, "gate_in": gate_in, "up_in": up_in}
    batch = dataclasses.replace(batch, shape=shape, experts=own, shared=shared, **more)
    weights = {f"{part}_weight": torch.stack([getattr(e, part) for e in own])[None] for part in PARTS}
    return Inputs(shape, {"slope_sums": world.state_of("slope_sums", [batch])}, weights), batch


def random_experts(seed, count=10, model=128, hidden=48, phi=lambda gate, up: F.silu(gate) * up):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *size: torch.randn(*size, generator=generator) / size[-1] ** 0.5  # noqa: E731
    sizes = ((hidden, model), (hidden, model), (model, hidden))
    return [Expert(*(normal(*size) for size in sizes), phi) for _ in range(count)]


def inside(found, pairs):
    """Which of these pairs lie in the null's band."""
    low, high = (np.broadcast_to(bound, found.values.shape)[pairs] for bound in (found.null.low, found.null.high))
    return (low <= found.values[pairs]) & (found.values[pairs] <= high)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "lengths"), [("common", (50,) * 16), ("each", (50,) * 16), ("each", (200,) * 16)])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("model", [64, 256])
def test_unrelated_experts_lie_in_the_band_nineteen_times_in_twenty(world, model, shift, tokens, lengths):
    # Without its interval, which is most of the time and no part of this.
    measure = dataclasses.replace(get("jacobian_alignment"), interval_reason="not asked for")
    within = {"random experts": [], "shuffled outputs": []}
    for seed in range(12):
        own = random_experts(seed, model=model)
        side, _ = side_of(world, own, shift, seed, lengths)
        for baseline, each in within.items():
            found = evaluate(measure, (side,), {"tokens": tokens, "baseline": baseline})
            each.append(inside(found, (0, *np.triu_indices(len(own), 1))))
    for baseline, each in within.items():
        assert 0.90 <= np.mean(each) <= 0.995, baseline


@pytest.mark.parametrize("baseline", ["random experts", "shuffled outputs"])
def test_the_band_of_single_tokens_holds_unrelated_experts_and_a_shared_one(world, baseline):
    own, within = random_experts(0), []
    shared = random_experts(1, count=1, hidden=96)[0]
    side, _ = side_of(world, own, shift=1.0, shared=shared)
    found = evaluate(get("jacobian_alignment"), (side,), {"tokens": "each", "baseline": baseline})
    within = inside(found, (0, *np.triu_indices(len(own) + 1, 1)))
    assert 0.90 <= within.mean() <= 0.995
    assert "slopes and probes" in found.null.how and found.facts["probes"] == found.facts["fewest tokens of a mean"]
    assert (found.null.low[0].diagonal() == 1).all() and (found.null.high[0].diagonal() == 1).all()


def test_a_sketch_along_some_directions_says_how_many_and_how_far_off(world):
    side, _ = side_of(world, random_experts(0), shift=1.0)
    knobs = {"tokens": "common"}
    exact, sketch = (evaluate(get("jacobian_alignment"), (side,), knobs | {"method": m}) for m in ("exact", "sketch"))
    error = sketch.facts["largest standard error of the sketch"]
    assert (exact.facts["method"], sketch.facts["method"], sketch.facts["probes"]) == ("exact", "sketch", 64)
    assert 0 < np.abs(sketch.values - exact.values).max() < 5 * error < 1


def same_inner(seed, model=64, hidden=8):
    """Experts of one gate and up projection, as upcycling leaves them, that write to unrelated outputs."""
    own = random_experts(seed, count=16, model=model, hidden=hidden, phi=lambda gate, up: gate + up)
    return [dataclasses.replace(expert, gate=own[0].gate, up=own[0].up) for expert in own]


def test_with_equal_inner_maps_chance_is_as_wide_as_the_docstring_says(world):
    found = evaluate(get("jacobian_alignment"), side_of(world, same_inner(0))[:1], {})
    pairs = (0, *np.triu_indices(16, 1))
    assert found.values[pairs].std() == pytest.approx((1 / 64**2 + 1 / (64 * 8)) ** 0.5, rel=0.12)
    assert inside(found, pairs).mean() < 0.6
    assert "gate and up projections unrelated" in found.null.how and "upcycled" in found.caveats[0]


@pytest.mark.parametrize(
    ("tokens", "baseline"), [("common", "shuffled outputs"), ("each", "shuffled outputs"), ("each", "random experts")]
)
def test_bands_that_keep_the_inner_maps_hold_equal_ones(world, tokens, baseline):
    knobs, within = {"tokens": tokens, "baseline": baseline}, []
    for seed in range(2):
        found = evaluate(get("jacobian_alignment"), side_of(world, same_inner(seed))[:1], knobs)
        within.append(inside(found, (0, *np.triu_indices(16, 1))))
    assert 0.90 <= np.mean(within) <= 0.995


def test_the_spread_that_is_drawn_is_that_of_the_closed_form(world):
    own = random_experts(3)
    side, batch = side_of(world, own, shift=0.5)
    rows, hashes = common_tokens(batch)
    x, v = batch.expert_input[rows].double(), token_probes(128, hashes)
    exact = [expert.to(torch.float64) for expert in own]
    inner = torch.stack([seen(expert, x, v).inner for expert in exact])
    image = torch.stack([expert.jvp(x, v) for expert in exact])
    for kind, rows in enumerate((inner, image)):
        grams = rows @ rows.mT
        size = grams.diagonal(dim1=-2, dim2=-1).sum(-1)
        expected = torch.einsum("ets,fts->ef", grams, grams) / (128 * size[:, None] * size)
        found = drawn_spread(side.slope_sums["drawn"].sum(0)[0, kind], 128)
        assert found == pytest.approx(float(off_diagonal(expected).mean()), rel=0.1)


def test_probes_of_tokens_are_many_and_isotropic():
    hashes = torch.randint(2**60, (20_000,), generator=torch.Generator().manual_seed(0))
    v = token_probes(32, hashes)
    torch.testing.assert_close(v.square().sum(-1), torch.full((20_000,), 32.0).double())
    assert len(v.unique(dim=0)) > 4000
    np.testing.assert_allclose(v.mT @ v / len(v), np.eye(32), atol=0.1)
    assert torch.equal(token_probes(32, hashes[5:9]), v[5:9])


@pytest.mark.parametrize(("model", "tolerance"), [(16, 1e-12), (200, 0.05)])
def test_energy_between_fixed_directions_is_exact_for_few_dimensions_and_unbiased_for_many(model, tolerance):
    ratios, x = [], torch.randn(5, model, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for expert in random_experts(0, count=20, model=model):
        exact = expert.to(torch.float64)
        found = sketched_energy((exact.gate, exact.up, exact.down), exact.slopes_each(x))
        ratios.append(found / torch.stack([exact.mean_jacobian(row[None]).square().sum() for row in x]))
    assert torch.stack(ratios).mean() == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize("seed", range(8))
def test_a_linear_share_of_few_tokens_stays_in_its_range(world, seed):
    batches = world.layers(seed, lengths=(2,) * 16)
    weights = {k: w for k, w in world.weight_slots(seed).items() if not k.startswith("router")}
    side = Inputs(world.SHAPE, {"slope_sums": world.state_of("slope_sums", batches)}, weights)
    plain, corrected = (evaluate(get("jacobian_linear_share"), (side,), {"corrected": c}) for c in (False, True))
    n = plain.facts["common tokens"]
    if n < 2:
        assert np.isnan(plain.values).all()
        return
    assert (plain.values >= 0).all() and (plain.values <= 1 + 1e-9).all()
    assert (corrected.values >= -1 / (n - 1) - 1e-9).all() and (corrected.values <= 1 + 1e-9).all()


def test_the_linear_share_of_few_tokens_is_that_of_their_jacobians(world):
    batches = world.layers(0, lengths=(2,) * 16)
    weights = {k: w for k, w in world.weight_slots(0).items() if not k.startswith("router")}
    side = Inputs(world.SHAPE, {"slope_sums": world.state_of("slope_sums", batches)}, weights)
    found = evaluate(get("jacobian_linear_share"), (side,), {"corrected": False}).values
    for layer, batch in enumerate(batches):
        x = batch.expert_input[common_tokens(batch)[0]].double()
        assert 2 <= len(x) < 8
        for index, expert in enumerate(batch.experts):
            each = torch.stack([expert.to(torch.float64).mean_jacobian(row[None]) for row in x])
            share = each.mean(0).square().sum() / each.square().sum((1, 2)).mean()
            assert found[layer, index] == pytest.approx(float(share), rel=1e-6)


def test_the_null_of_step_0_is_the_pairs_of_that_step(world):
    """Copies stand far above the unrelated experts that they were; a shared expert has a band of its own."""
    measure = dataclasses.replace(get("jacobian_alignment"), interval_reason="not asked for")
    own, shared = random_experts(0), random_experts(1, count=1, hidden=96)[0]
    start, _ = side_of(world, own, shared=shared)
    trained, _ = side_of(world, [own[0]] * len(own), shared=own[0])
    before = evaluate(measure, (start,), {"tokens": "each"}).values[0]
    found = evaluate(measure, (trained,), {"tokens": "each", "baseline": "step 0"}, start)
    routed, beside = before[np.triu_indices(len(own), 1)], before[-1, :-1]
    for place, cosines in (((0, 0, 1), routed), ((0, -1, 2), beside)):
        assert found.null.mean[place] == pytest.approx(cosines.mean())
        assert found.null.low[place] == pytest.approx(np.quantile(cosines, 0.025))
        assert found.null.high[place] == pytest.approx(np.quantile(cosines, 0.975))
    assert (found.null.high[0].diagonal() == 1).all() and found.values[0, 0, 1] == pytest.approx(1)
    assert found.facts["mean over pairs at step 0"] == pytest.approx(routed.mean())


def test_without_a_step_0_that_fits_there_is_no_such_null(world):
    measure, side = get("jacobian_alignment"), side_of(world, random_experts(0, count=4))[0]
    assert "no step 0 of the same run" in evaluate(measure, (side,), {"baseline": "step 0"}).null.reason
    fewer = side_of(world, random_experts(0, count=3))[0]
    assert "another number of experts" in evaluate(measure, (side,), {"baseline": "step 0"}, fewer).null.reason
