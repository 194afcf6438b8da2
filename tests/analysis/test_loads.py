"""Loads and how uneven they are: worked numbers of the papers and the extremes that can be counted by hand."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob
from analysis.inference import SOFT_REASON, evaluate
from analysis.loads import evenness, relative, unevenness, violation
from analysis.measure import get
from analysis.nulls import uniform_loads
from analysis.result import Reason

# Domain and layer, largest share in %, MaxVio: from the counts in OLMoE's released routing files (allenai/OLMoE).
OLMOE = [
    ("github 0", 7.82, 4.006),
    ("github 7", 9.62, 5.157),
    ("github 15", 7.04, 3.509),
    ("arxiv 0", 12.21, 6.813),
    ("arxiv 7", 9.82, 5.283),
    ("arxiv 15", 11.71, 6.495),
    ("c4 0", 4.71, 2.017),
    ("c4 7", 4.15, 1.658),
    ("c4 15", 3.90, 1.499),
    ("book 0", 5.68, 2.632),
    ("book 7", 6.34, 3.057),
    ("book 15", 4.57, 1.928),
    ("wikipedia 0", 9.65, 5.179),
    ("wikipedia 7", 10.59, 5.780),
    ("wikipedia 15", 7.27, 3.651),
]


@pytest.mark.parametrize(("row", "largest", "maxvio"), OLMOE, ids=[row[0] for row in OLMOE])
def test_violation_of_published_shares(row, largest, maxvio):
    rest = (100 - largest) / 63
    counts = torch.tensor([largest] + [rest] * 63, dtype=torch.float64)
    # The share is printed to 0.01 %, so MaxVio is known to 64 * 0.00005.
    assert float(violation(counts)) == pytest.approx(maxvio, abs=64 * 0.00005 + 0.0005)


def test_cv_and_gini_of_the_published_counts(root):
    """Of OLMoE's released routing files, as tabulated from them: layers 0, 7 and 15 of two texts."""
    counts = json.loads((root / "data/traces/olmoe-1b-7b-0924.json").read_text("utf-8"))["counts"]
    expected = {
        "github": ([0.661, 1.349, 1.190], [0.291, 0.584, 0.589]),
        "c4": ([0.324, 0.402, 0.512], [0.137, 0.212, 0.288]),
    }
    for text, numbers in expected.items():
        for which, told in zip(("cv", "gini"), numbers, strict=True):
            np.testing.assert_allclose(unevenness(torch.tensor(counts[text]), which), told, rtol=0, atol=0.0005)


def test_cv_and_gini_of_the_same_k_experts_are_as_large_as_they_can_be(world):
    counts = torch.zeros(2, 64)
    counts[0, :8], counts[1] = 1000, 5
    torch.testing.assert_close(unevenness(counts, "cv"), torch.tensor([7**0.5, 0]).double())
    torch.testing.assert_close(unevenness(counts, "gini"), torch.tensor([1 - 8 / 64, 0]).double())
    side = world.inputs_for(get("load_violation"))
    loads = side[0].prompt_counts["selected"].sum(0).double().numpy()
    pairs = np.abs(loads[:, :, None] - loads[:, None]).mean((1, 2)) / (2 * loads.mean(-1))
    np.testing.assert_allclose(evaluate(get("load_violation"), side, {"which": "gini"}).values, pairs, rtol=1e-12)


def test_balanced_routing_has_no_violation_and_full_entropy():
    counts = torch.full((3, 64), 125)
    assert (violation(counts) == 0).all()
    torch.testing.assert_close(evenness(counts), torch.ones(3, dtype=torch.float64))


def test_all_tokens_to_the_same_k_experts():
    counts = torch.zeros(64)
    counts[:8] = 1000
    assert float(violation(counts)) == 64 / 8 - 1
    assert float(evenness(counts)) * math.log(64) == pytest.approx(math.log(8), rel=1e-12)


def test_the_idlest_expert_is_measured_below_an_equal_share():
    counts = torch.tensor([[10, 10, 10, 10], [4, 8, 12, 16], [0, 0, 20, 20]])
    torch.testing.assert_close(violation(counts, "min"), torch.tensor([0, 0.6, 1]).double())
    torch.testing.assert_close(violation(counts, "max"), torch.tensor([0, 0.6, 1]).double())
    assert float(violation(torch.tensor([0, 3, 3, 6]), "max")) == 1
    assert float(violation(torch.tensor([1, 3, 3, 5]), "min")) == pytest.approx(2 / 3)


def test_per_prompt_violation_is_the_mean_of_the_prompts_and_skips_empty_ones(world):
    """Two prompts that favour opposite experts: balanced together, as unbalanced as can be one by one."""
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=4, top_k=1)
    batch = world.routes(shape=shape, lengths=(8, 8))
    batch.indices[0, :8, 0] = torch.tensor([0, 1] * 4)
    batch.indices[0, 8:, 0] = torch.tensor([2, 3] * 4)
    empty = dataclasses.replace(world.prompts(3), ids=("p00", "p01", "without tokens"))
    batch = dataclasses.replace(batch, prompts=empty)
    side = world.Inputs(shape, {"prompt_counts": world.state_of("prompt_counts", [batch])})
    found = {
        over: evaluate(get("load_violation"), (side,), {"over": over, "which": which}).values.tolist()
        for over, which in (("all", "max"), ("prompts", "max"))
    }
    assert found == {"all": [0], "prompts": [1]}
    least = [
        evaluate(get("load_violation"), (side,), {"over": o, "which": "min"}).values[0] for o in ("all", "prompts")
    ]
    assert least == [0, 1]


def test_the_floor_prompt_by_prompt_is_that_of_short_texts(world):
    (side,) = world.inputs_for(get("load_violation"), lengths=(20, 60) * 8)
    whole, single = (evaluate(get("load_violation"), (side,), {"over": over}).null for over in ("all", "prompts"))
    generator = torch.Generator().manual_seed(1)
    ranked = torch.rand(4000, 80, 6, generator=generator).topk(2).indices
    chosen = torch.nn.functional.one_hot(ranked, 6).sum(2)
    floor = (violation(chosen[:, :20].sum(1)).mean() + violation(chosen[:, 20:].sum(1)).mean()) / 2
    assert float(single.mean) == pytest.approx(float(floor), rel=0.02)
    assert single.mean > 3 * whole.mean


def test_one_expert_for_everything_has_no_entropy():
    counts = torch.tensor([0, 0, 7, 0])
    assert float(evenness(counts)) == 0
    assert relative(counts).tolist() == [0, 0, 4, 0]


def test_nothing_counted_is_nan_and_not_zero():
    for formula in (violation, evenness):
        assert formula(torch.zeros(4)).isnan()


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "mean", "point"),
    [
        (64, 8, 1000, 0.20, 0.26),
        (8, 2, 1000, 0.085, 0.144),
        (8, 2, 7680, 0.031, 0.052),
        (64, 6, 4096, 0.118, 0.156),
    ],
)
def test_floor_of_blind_routing(experts, top_k, tokens, mean, point):
    generator = torch.Generator().manual_seed(0)
    drawn = violation(uniform_loads(torch.full((2000,), tokens), top_k, experts, generator))
    # The reference figures are simulations too, printed to two or three digits.
    assert float(drawn.mean()) == pytest.approx(mean, rel=0.04)
    assert float(torch.quantile(drawn, 0.95)) == pytest.approx(point, rel=0.07)


def test_the_floor_falls_with_the_tokens_to_the_published_violation_of_a_balanced_router():
    generator = torch.Generator().manual_seed(0)
    drawn = violation(uniform_loads(torch.full((2000,), 43_000), 6, 64, generator))
    assert float(drawn.mean()) == pytest.approx(0.036, abs=0.0005)


def test_blind_routing_gives_k_distinct_experts_per_token():
    generator = torch.Generator().manual_seed(0)
    loads = uniform_loads(torch.tensor([1, 7, 1000]), 3, 5, generator)
    assert loads.sum(-1).tolist() == [3, 21, 3000]
    assert loads[0].max() == 1
    assert (loads <= torch.tensor([1, 7, 1000])[:, None]).all()


def test_blind_routing_is_the_one_that_ranks_random_scores():
    generator = torch.Generator().manual_seed(0)
    exact = uniform_loads(torch.full((4000,), 5), 2, 4, generator)
    chosen = torch.rand(4000, 5, 4, generator=generator).topk(2).indices
    ranked = torch.nn.functional.one_hot(chosen, 4).sum((1, 2)).double()
    for moment in (lambda x: x.var(0), lambda x: torch.cov(x.T)[0, 1]):
        torch.testing.assert_close(moment(exact), moment(ranked), rtol=0.15, atol=0.05)


def test_an_expert_without_tokens_is_counted_dead(world):
    batch = world.routes()
    batch = dataclasses.replace(batch, indices=torch.where(batch.indices == 0, 6, batch.indices))
    side = world.Inputs(world.SHAPE, {"prompt_counts": world.state_of("prompt_counts", [batch])})
    for name in ("expert_load", "load_violation", "load_entropy"):
        assert evaluate(get(name), (side,), {}).facts["dead experts"] == 3
    assert (evaluate(get("expert_load"), (side,), {}).values[:, 0] == 0).all()


def dead(world, indices, **knobs):
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=8, top_k=2)
    batch = world.routes(shape=shape, lengths=(len(indices) // 2,) * 2)
    side = dataclasses.replace(batch, indices=indices[None])
    side = world.Inputs(shape, {"prompt_counts": world.state_of("prompt_counts", [side])})
    return evaluate(get("dead_experts"), (side,), knobs)


def test_dead_experts_are_those_at_or_below_the_bar(world):
    indices = torch.tensor([[0, 1], [0, 2], [1, 2], [0, 3]] * 10)
    result = dead(world, indices)
    # Loads 30, 20, 20, 10 of an equal share of 10; four never chosen.
    assert result.values.tolist() == [4]
    assert result.facts["dead experts"] == 4
    assert dead(world, indices, share=0.99).values.tolist() == [4]
    assert dead(world, indices, share=1.0).values.tolist() == [5]
    assert result.values[0] > result.null.high


def test_blind_routing_of_few_tokens_leaves_as_many_experts_out_as_the_binomial_says(world):
    null = dead(world, torch.tensor([[0, 1], [0, 2], [1, 2], [0, 3]])).null
    assert float(null.mean) == pytest.approx(8 * (1 - 2 / 8) ** 4, rel=0.02)
    with pytest.raises(BadKnob, match=r"'share' is -1\.0; it takes a number, 0 to"):
        dead(world, torch.zeros(4, 2).long(), share=-1.0)


def test_served_counts_leave_out_what_capacity_dropped(world):
    (side,) = world.inputs_for(get("expert_load"))
    state = side.states["prompt_counts"]
    assert state["served"].sum() < state["selected"].sum()
    chosen, served = (evaluate(get("expert_load"), (side,), {"count": c}).values for c in ("selected", "served"))
    counts = state["served"].sum(0).double()
    np.testing.assert_allclose(served, counts / counts.mean(-1, keepdim=True))
    assert not np.allclose(chosen, served)


def test_one_expert_can_have_every_selection_that_counts(world):
    """Beyond E/k = 2 and E/k - 1 = 1, once for a choice that is of no expert, once for one that was dropped."""
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=4, top_k=2)
    batch = world.routes(shape=shape, lengths=(10,))
    for second, served in ((4, True), (1, False)):
        batch.indices[..., 0], batch.indices[..., 1] = 0, second
        batch.served[..., 0], batch.served[..., 1] = True, served
        side = world.Inputs(shape, {"prompt_counts": world.state_of("prompt_counts", [batch])})
        found = {name: evaluate(get(name), (side,), {"count": "served"}) for name in ("expert_load", "load_violation")}
        assert found["expert_load"].values.tolist() == [[4, 0, 0, 0]]
        assert found["load_violation"].values.tolist() == [3]
    assert evaluate(get("expert_load"), (side,), {"count": "selected"}).values.tolist() == [[2, 2, 0, 0]]


@pytest.mark.parametrize("name", ["expert_load", "load_violation", "load_entropy", "dead_experts"])
def test_no_tokens_at_all_is_nan_with_a_reason(name, world):
    empty = world.take(world.routes(lengths=(3, 3)), [])
    side = world.Inputs(world.SHAPE, {"prompt_counts": world.state_of("prompt_counts", [empty])})
    result = evaluate(get(name), (side,), {})
    assert np.isnan(result.values).all()
    assert result.null == Reason("no token was routed")
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


def test_the_worst_layer_is_named_by_its_own_label(world):
    batch = world.routes()
    batch.indices[1, :, 0] = 2
    side = world.Inputs(world.SHAPE, {"prompt_counts": world.state_of("prompt_counts", [batch])})
    result = evaluate(get("load_violation"), (side,), {})
    assert result.facts["highest layer"] == "2"
    assert result.facts["highest value"] == result.values[1]
    assert result.facts["mean over layers"] == pytest.approx(result.values.mean())


@pytest.mark.parametrize("name", ["expert_load", "load_violation", "load_entropy", "coactivation", "dead_experts"])
def test_a_fully_soft_router_has_no_loads(name, world):
    soft = dataclasses.replace(world.SHAPE, top_k=6)
    result = evaluate(get(name), world.inputs_for(get(name), shape=soft), {})
    assert np.isnan(result.values).all()
    assert result.null == result.interval == Reason(SOFT_REASON)
