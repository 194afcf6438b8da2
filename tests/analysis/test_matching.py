"""Experts matched across checkpoints: planted permutations, chance, and differences that must vanish after matching."""

import dataclasses
import types
from functools import cache

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob, NotComparable
from analysis.evidence import likeness
from analysis.inference import evaluate
from analysis.matching import assigned
from analysis.measure import Inputs, get, measures
from analysis.slots import Shape
from tests.analysis import plants

EVIDENCE = ("co-selection", "router row", "centroid", "jacobian", "output")
# One of its own for each layer: a matching that mixes up layers is found out.
ORDERS = torch.tensor([[3, 0, 5, 1, 2, 4], [1, 2, 3, 4, 5, 0], [5, 4, 3, 2, 1, 0]])
AFTER = [name for name, m in measures().items() if any(k.name == "matching" for k in m.knobs)]


def wide(world):
    """The fixture's world in 24 dimensions, where unrelated directions are told from copies."""
    return types.SimpleNamespace(**vars(world) | {"SHAPE": dataclasses.replace(world.SHAPE, model=24)})


def drawn(world):
    """Random inputs, rows and experts."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(3, sum(plants.LENGTHS), 24, generator=generator) + 0.5).bfloat16().double()
    rows = torch.randn(3, 6, 24, generator=generator).double()
    parts = [
        torch.stack([torch.stack([getattr(e, part) for e in layer]) for layer in world.experts(0, world.SHAPE)])
        for part in ("gate", "up", "down")
    ]
    return plants.Drawing(x, rows, *(part.double() for part in parts))


def permuted(drawing, orders=ORDERS):
    """Expert e renamed to orders[layer][e] in every layer: a copy that does the same under other numbers."""
    back = orders.argsort(-1)
    return dataclasses.replace(
        drawing,
        **{
            name: torch.stack([rows[order] for rows, order in zip(getattr(drawing, name), back, strict=True)])
            for name in ("rows", "gate", "up", "down")
        },
    )


@pytest.fixture(scope="module")
def pair(world):
    """For a measure, a world and its permuted copy."""
    there = wide(world)
    own, copy = (plants.grown(there, one) for one in (drawn(there), permuted(drawn(there))))
    return cache(lambda name: plants.sides(there, get(name), copy, own))


def asked(name, sides, **knobs):
    """Without its interval, which is most of the time and no part of this."""
    return evaluate(dataclasses.replace(get(name), interval_reason="not asked"), sides, knobs)


@pytest.mark.parametrize("evidence", [*EVIDENCE, "mix"])
def test_a_permuted_checkpoint_is_recovered_exactly_by_every_evidence(pair, evidence):
    result = asked("expert_matching", pair("expert_matching"), evidence=evidence)
    assert (result.arrays["partner"] == ORDERS.numpy()).all()
    assert result.facts["order of b"] == f"matched to a by {evidence}, 18 of 18 experts"
    assert result.facts["matched under their own number"] == int((ORDERS == torch.arange(6)).sum())
    assert result.facts["mean likeness of matched pairs"] == pytest.approx(1, abs=1e-9)


def test_what_is_shown_are_all_pairs_the_matched_or_those_of_one_number(pair):
    sides = pair("expert_matching")
    whole, matched, same = (
        asked("expert_matching", sides, show=show).values for show in ("all pairs", "matched", "same number")
    )
    rows, columns = np.nonzero(~np.isnan(matched[1]))
    assert columns.tolist() == ORDERS[1].tolist() and rows.tolist() == list(range(6))
    np.testing.assert_array_equal(np.diagonal(same, axis1=1, axis2=2), np.diagonal(whole, axis1=1, axis2=2))
    assert np.isnan(same).sum() == 3 * 30


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(AFTER))
def test_every_difference_of_a_permuted_checkpoint_is_zero_after_matching(pair, name):
    same = 1.0 if name == "routing_agreement" else 0.0
    few = {"n": 2} if name == "subspace_drift" else {}  # so that every expert has rows enough
    for matching in next(k.choices for k in get(name).knobs if k.name == "matching"):
        result = asked(name, pair(name), matching=matching, **few)
        if matching == "identity":
            assert np.abs(result.values - same).max() > 0.1
            assert result.facts["order of b"] == "its own numbers"
        else:
            np.testing.assert_allclose(result.values, same, atol=1e-9)
            assert result.facts["order of b"] == f"matched to a by {matching}, 18 of 18 experts"


@pytest.mark.parametrize("what", ["jaccard", "top-1", "weighted", "same", "same so far"])
def test_agreement_of_a_permuted_checkpoint_is_whole_in_every_form(pair, what):
    result = asked("routing_agreement", pair("routing_agreement"), what=what)
    np.testing.assert_allclose(result.values, 1, atol=1e-12)
    assert result.facts["first layer of divergence (median token)"] == "none"


def test_the_share_of_tokens_whose_experts_are_all_the_same_is_that_counted_by_hand(world):
    a, b = world.inputs_for(get("routing_agreement"))
    found = {w: asked("routing_agreement", (a, b), what=w, matching="identity").values for w in ("same", "same so far")}
    sets = [[[set(chosen) for chosen in token] for token in s.token_routes["indices"].tolist()] for s in (a, b)]
    alike = np.array([[one == other for one, other in zip(*pair, strict=True)] for pair in zip(*sets, strict=True)])
    np.testing.assert_allclose(found["same"], alike.mean(0))
    np.testing.assert_allclose(found["same so far"], alike.cumprod(1).mean(0))
    assert 0 < found["same"].min() and found["same so far"][-1] < found["same"][-1]


NEEDS = {
    "co-selection": ("token_routes",),
    "router row": ("router_weight",),
    "centroid": ("centroid_sums",),
    "jacobian": ("slope_sums", "gate_weight", "up_weight", "down_weight"),
    "output": ("output_sums",),
}


@pytest.mark.slow
@pytest.mark.parametrize("evidence", EVIDENCE)
def test_unrelated_experts_stay_unmatched(world, evidence):
    """The bound holds the best of all pairs of a layer in 95 % of cases: of 60 layers at most 8 (p < 0.01)."""
    only, layers = dataclasses.replace(get("expert_matching"), reads=NEEDS[evidence]), 0
    for seed in range(20):
        found = likeness(*world.inputs_for(only, 50 + seed), evidence)
        layers += int((assigned(found) >= 0).any(-1).sum())
    assert layers <= 8


def test_the_bound_of_directions_is_passed_about_as_often_as_it_says():
    shape, generator = Shape(tuple(map(str, range(2000))), 4, 2, 16, 3), torch.Generator().manual_seed(0)
    rows = [torch.randn(2000, 4, 16, generator=generator) for _ in range(2)]
    found = likeness(*(Inputs(shape, {}, {"router_weight": one}) for one in rows), "router row")
    passed = int((found.cosines > found.bound).flatten(1).any(-1).sum())
    # 5 % of 2,000 layers, less what Bonferroni gives away, within three standard errors.
    assert 70 <= passed <= 130


def test_more_experts_on_one_side_leave_the_others_alone(pair):
    """b without its experts 4 and 5: their counterparts in a have no partner, and nobody takes their place."""
    a, b = pair("router_row_difference")
    rows = {"router_weight": b.weights["router_weight"][:, :4]}
    fewer = dataclasses.replace(b, shape=dataclasses.replace(b.shape, experts=4), weights=rows)
    whole = ORDERS.clone()
    whole[ORDERS >= 4] = -1
    assert torch.equal(assigned(likeness(a, fewer, "router row")), whole)
    found = asked("router_row_difference", (a, fewer), form="raw").values  # without two rows the mean is another
    np.testing.assert_allclose(found, np.where(whole < 0, np.nan, 0), atol=1e-12)
    with pytest.raises(NotComparable, match="a has 6 experts a layer, b has 4: their numbers pair no experts"):
        asked("router_row_difference", (a, fewer), matching="identity")


def test_what_cannot_be_compared_is_refused_with_both_values(world, pair):
    (a, b), other = pair("expert_matching"), world.inputs_for(get("expert_matching"))[1]
    with pytest.raises(NotComparable, match=r"hidden states of 24 dimensions, b of 5.*co-selection"):
        likeness(a, other, "router row")
    routes = b.token_routes
    fewer = dataclasses.replace(routes, arrays={name: array[1:] for name, array in routes.arrays.items()})
    count = len(routes["position"])
    with pytest.raises(NotComparable, match=rf"different tokens \({count} and {count - 1}\)"):
        likeness(a, dataclasses.replace(b, states={"token_routes": fewer}), "co-selection")
    shorter = dataclasses.replace(b, shape=dataclasses.replace(b.shape, layers=("1", "2")))
    with pytest.raises(NotComparable, match=r"a has 3 MoE layers \(1, 2, 3\), b has 2 \(1, 2\)"):
        likeness(a, shorter, "centroid")


NONE = dict.fromkeys(("co_selection", "router_row", "centroid", "jacobian", "output"), 0.0)


@pytest.mark.parametrize(
    ("weights", "right"),
    [({"output": -1.0}, "'output' is -1.0; it takes a number, 0 to"), (NONE, "one of them has to be above 0")],
    ids=["negative", "none"],
)
def test_a_mix_of_negative_or_no_weights_is_refused(pair, weights, right):
    with pytest.raises(BadKnob, match=right):
        asked("expert_matching", pair("expert_matching"), evidence="mix", **weights)


def test_a_mix_is_the_weighted_mean_of_its_parts(pair):
    sides = pair("expert_matching")
    parts = [asked("expert_matching", sides, evidence=e).values for e in ("co-selection", "router row")]
    mixed = asked("expert_matching", sides, evidence="mix", **NONE | {"co_selection": 3.0, "router_row": 1.0}).values
    np.testing.assert_allclose(mixed, (3 * parts[0] + parts[1]) / 4, atol=1e-12)


def test_a_rarely_used_expert_is_not_told_from_chance(world):
    """One shared token among 640 happens by chance somewhere among 36 pairs; five of five do not."""
    for times, matched in ((1, False), (5, True)):
        batch = world.routes()
        indices = torch.stack([torch.arange(640) % 5, torch.arange(640) // 5 % 4], -1).repeat(3, 1, 1)
        indices[..., 1] += indices[..., 1] >= indices[..., 0]
        indices[:, :times, 0] = 5
        state = {"token_routes": world.state_of("token_routes", [dataclasses.replace(batch, indices=indices)])}
        side = Inputs(batch.shape, state)
        found = likeness(side, side, "co-selection")
        assert ((found.cosines > found.bound)[:, 5, 5] == matched).all()
