"""What one layer's expert says about the next layer's, counted by hand and on planted routes."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.errors import TooFew
from analysis.inference import evaluate
from analysis.measure import get

MEASURE = get("cross_layer_transition")


def side_of(batch, world):
    return (world.Inputs(batch.shape, {"layer_transitions": world.state_of("layer_transitions", [batch])}),)


def routed(layers, world, experts=6):
    """A batch whose indices are given, layer by token by rank."""
    indices = torch.as_tensor(layers)
    shape = dataclasses.replace(
        world.SHAPE, layers=tuple(map(str, range(len(indices)))), experts=experts, top_k=indices.shape[-1]
    )
    batch = world.take(world.routes(shape=shape, lengths=(indices.shape[1], 1)), range(indices.shape[1]))
    ranks = torch.arange(indices.shape[-1], 0, -1).double().expand(indices.shape)
    return dataclasses.replace(batch, indices=indices, weights=ranks)


def test_four_tokens_counted_by_hand(world):
    batch = routed([[[0], [0], [1], [1]], [[2], [2], [2], [3]], [[0], [1], [4], [5]]], world)
    result = evaluate(MEASURE, side_of(batch, world), {})
    assert result.axes[0].labels == ("0 to 1", "1 to 2")
    # Expert 2 takes 3 of 4 tokens: all of those of expert 0, half of those of expert 1.
    np.testing.assert_allclose(result.values[0, 0, 2:4], [1 - 3 / 4, 0 - 1 / 4])
    np.testing.assert_allclose(result.values[0, 1, 2:4], [1 / 2 - 3 / 4, 1 / 2 - 1 / 4])
    assert np.isnan(result.values[0, 2:]).all()
    assert result.facts["dead experts"] == 4 + 4
    assert result.facts["best guess of the next expert"] == pytest.approx((2 + 1 + 1 + 1) / 8)
    assert result.facts["without knowing the last"] == pytest.approx((3 / 4 + 1 / 4) / 2)


def test_all_pairs_and_equal_ranks_by_hand(world):
    batch = routed([[[0, 1], [1, 0]], [[2, 3], [2, 4]]], world)
    every, same = (evaluate(MEASURE, side_of(batch, world), {"same_rank": r}).values[0] for r in (False, True))
    # Both experts of both tokens meet 2; 3 and 4 are each met by one of the two tokens.
    np.testing.assert_allclose(every[:2, 2:5], [[0, 0, 0], [0, 0, 0]])
    # First choices: 0 to 2 and 1 to 2; second choices: 1 to 3 and 0 to 4. Shares of four pairs: 2 has 1/2.
    np.testing.assert_allclose(same[:2, 2:5], [[0, -1 / 4, 1 / 4], [0, 1 / 4, -1 / 4]])


def test_a_layer_that_repeats_the_last_is_known_for_certain(world):
    batch = world.routes(lengths=(30,) * 16)
    batch = dataclasses.replace(batch, indices=batch.indices[:1].expand(3, -1, -1))
    result = evaluate(MEASURE, side_of(batch, world), {})
    share = world.state_of("prompt_counts", [batch])["selected"].sum(0)[0].double() / 480
    diagonal = np.diagonal(result.values[0])
    np.testing.assert_allclose(diagonal, 1 - share.numpy(), atol=1e-12)
    assert (diagonal > np.diagonal(result.null.high[0])).all()
    assert result.facts["best guess of the next expert"] == 1


def test_rows_sum_to_nothing_because_both_shares_sum_to_k(world):
    for rank in (False, True):
        values = evaluate(MEASURE, world.inputs_for(MEASURE), {"same_rank": rank}).values
        np.testing.assert_allclose(values.sum(-1), 0, atol=1e-12)


def test_blind_layers_stay_within_the_band_of_independence(world):
    result = evaluate(MEASURE, side_of(world.routes(3, lengths=(60,) * 16), world), {})
    inside = (result.values >= result.null.low) & (result.values <= result.null.high)
    assert 0.88 < inside.mean() <= 1


def test_the_band_is_that_of_shuffled_tokens(world):
    batch = world.routes(4, lengths=(20,) * 16)
    generator, drawn = torch.Generator().manual_seed(0), []
    for _ in range(300):
        indices = batch.indices.clone()
        indices[1] = indices[1, torch.randperm(len(batch.keys), generator=generator)]
        state = world.state_of("layer_transitions", [dataclasses.replace(batch, indices=indices)])
        drawn.append(MEASURE.function(state, same_rank=False).values[0])
    result = evaluate(MEASURE, side_of(batch, world), {})
    half = 1.96 * torch.stack(drawn).std(0).numpy()
    np.testing.assert_allclose(np.broadcast_to(result.null.high[0], half.shape), half, rtol=0.25)
    assert (result.null.high[0] / half).mean() == pytest.approx(1, abs=0.03)


def test_an_identity_expert_is_no_partner(world):
    batch = routed([[[0], [0]], [[6], [1]]], world)
    state = world.state_of("layer_transitions", [batch])
    assert state["both"].sum() == 1 and state["same_rank"].sum() == 1
    assert state["selected"].sum(0).tolist() == [[2, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]


def test_one_layer_has_no_next(world):
    with pytest.raises(TooFew, match="needs two"):
        evaluate(MEASURE, side_of(routed([[[0], [1]]], world), world), {})
