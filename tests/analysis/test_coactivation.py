"""Which experts are chosen together, counted by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.inference import evaluate
from analysis.measure import get


def asked(indices, world, experts=6, **knobs):
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=experts, top_k=indices.shape[-1])
    batch = world.take(world.routes(shape=shape, lengths=(len(indices), 1)), range(len(indices)))
    ranks = torch.arange(indices.shape[-1], 0, -1).double().expand(indices.shape)
    batch = dataclasses.replace(batch, indices=indices[None], weights=ranks[None])
    side = world.Inputs(shape, {"coactivation_counts": world.state_of("coactivation_counts", [batch])})
    return evaluate(get("coactivation"), (side,), knobs)


def test_four_tokens_counted_by_hand(world):
    result = asked(torch.tensor([[0, 1], [1, 0], [0, 2], [4, 5]]), world)
    nan = np.nan
    expected = [
        [1, 2 / 3, 1 / 3, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [nan] * 6,
        [0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1],
    ]
    np.testing.assert_allclose(result.values[0], expected, rtol=1e-12)
    assert result.facts["dead experts"] == 1
    assert result.facts["pairs"] == 5 * 5
    assert "NaN: 1 expert(s) without tokens." in result.caveats
    assert np.isnan(result.null.mean[0, 3]).all()


def test_rows_without_the_diagonal_sum_to_k_minus_one(world):
    (side,) = world.inputs_for(get("coactivation"))
    values = evaluate(get("coactivation"), (side,), {}).values
    np.testing.assert_allclose(values.sum(-1), np.full((3, 6), 2.0))


def test_blind_partners_have_the_published_chance(world):
    tokens = torch.rand(500, 64, generator=torch.Generator().manual_seed(0)).topk(8).indices
    null = asked(tokens, world, experts=64).null
    off = ~np.eye(64, dtype=bool)
    np.testing.assert_allclose(null.mean[0][off], 7 / 63)
    assert 7 / 63 == pytest.approx(0.111, abs=5e-4)


def test_one_expert_per_token_has_no_company(world):
    result = asked(torch.tensor([[0], [1], [1]]), world)
    assert (result.values[0, :2, 2:] == 0).all()
    assert result.facts["mean over pairs"] == 0
    assert (result.null.high[0, 0, 1:] == 0).all()


def test_neighbours_in_rank_by_hand(world):
    """1 over 0 over 2, then 0 over 2 over 3: of the three pairs of a token, two are neighbours."""
    values = asked(torch.tensor([[1, 0, 2], [0, 2, 3]]), world, pairs="adjacent_rank").values[0]
    expected = [[1, 1 / 2, 1, 0], [1, 1, 0, 0], [1, 0, 1, 1 / 2], [0, 0, 1, 1]]
    np.testing.assert_allclose(values[:4, :4], expected, rtol=1e-12)


def test_rank_is_by_weight_and_not_by_the_slot_a_router_happens_to_use(world):
    indices, shape = torch.tensor([[2, 1, 0]]), dataclasses.replace(world.SHAPE, layers=("0",), top_k=3)
    batch = world.take(world.routes(shape=shape, lengths=(1, 1)), [0])
    batch = dataclasses.replace(batch, indices=indices[None], weights=torch.tensor([[[0.1, 0.5, 0.4]]]))
    adjacent = world.state_of("coactivation_counts", [batch])["adjacent"].sum(0)[0]
    # By weight: 1, 0, 2.
    assert adjacent.nonzero().tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]


def test_blind_neighbours_have_the_published_chance(world):
    tokens = torch.rand(4000, 64, generator=torch.Generator().manual_seed(0)).topk(8).indices
    result = asked(tokens, world, experts=64, pairs="adjacent_rank")
    off = ~np.eye(64, dtype=bool)
    np.testing.assert_allclose(result.null.mean[0][off], 2 * 7 / (8 * 63))
    assert 2 * 7 / (8 * 63) == pytest.approx(0.028, abs=5e-4)
    assert result.facts["mean over pairs"] == pytest.approx(2 * 7 / (8 * 63), rel=1e-3)


def test_two_experts_a_token_are_always_neighbours(world):
    (side,) = world.inputs_for(get("coactivation"))
    every, near = (evaluate(get("coactivation"), (side,), {"pairs": p}).values for p in ("all", "adjacent_rank"))
    np.testing.assert_array_equal(every, near)
