"""Experts and kinds of prompt: shares, information and contrasts, by hand, planted and under shuffled labels."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control, norm

from analysis.errors import BadKnob, TooFew
from analysis.inference import evaluate
from analysis.measure import get
from analysis.measures.domain_specialisation import information
from analysis.nulls import above_the_largest, beyond
from analysis.result import Reason
from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State

DOMAIN, CONTRAST = get("domain_specialisation"), get("expert_contrast")


def state_of(selected, categories, tokens, top_k=2):
    """Counts prompt by layer by expert as given."""
    selected = torch.as_tensor(selected)
    prompts, layers, experts = selected.shape
    ids = tuple(f"p{i:03d}" for i in range(prompts))
    shape = Shape(tuple(map(str, range(layers))), experts, top_k, 4, 4)
    arrays = {"selected": selected, "served": selected, "weights": selected / top_k, "tokens": torch.as_tensor(tokens)}
    return State("prompt_counts", shape, Prompts(ids, tuple(map(text_digest, ids)), tuple(categories)), arrays)


def asked(measure, state, **knobs):
    from analysis.measure import Inputs

    return evaluate(measure, (Inputs(state.shape, {"prompt_counts": state}),), knobs)


def planted(world, expert=5, lengths=(30,) * 16):
    """Blind routing, except that every token of category a also uses one expert of the first layer."""
    batch = world.routes(lengths=lengths)
    first = torch.tensor([c == "a" for c in batch.prompts.categories])[batch.keys.prompt]
    indices = batch.indices.clone()
    other = torch.where(indices[0, :, 0] == expert, indices[0, :, 1], indices[0, :, 0])
    moved = torch.stack([torch.full_like(other, expert), other], -1)
    indices[0] = torch.where(first[:, None], moved, indices[0])
    return world.state_of("prompt_counts", [dataclasses.replace(batch, indices=indices)])


def test_shares_of_two_categories_by_hand():
    state = state_of([[[3, 1, 0, 0]], [[1, 3, 0, 0]], [[0, 0, 4, 4]]], "aab", [2, 2, 4])
    result = asked(DOMAIN, state)
    np.testing.assert_allclose(result.values[0].T, [[1 / 2, 1 / 2, 0, 0], [0, 0, 1 / 2, 1 / 2]])
    assert result.axes[2].labels == ("a", "b")
    per_token = asked(DOMAIN, state, per="token")
    np.testing.assert_allclose(per_token.values[0].T, [[1, 1, 0, 0], [0, 0, 1, 1]])
    # Two categories on experts of their own: one selection tells which, a whole bit.
    assert result.facts["layer 0: information (bits)"] == pytest.approx(1)
    assert (result.facts["even share"], per_token.facts["even share"]) == (1 / 4, 2 / 4)


def test_shares_sum_to_one_and_to_k_per_token(world):
    for per, total in (("selection", 1), ("token", 2)):
        values = evaluate(DOMAIN, world.inputs_for(DOMAIN), {"per": per}).values
        np.testing.assert_allclose(values.sum(1), total, rtol=1e-12)


def test_information_by_hand_and_none_between_equal_categories():
    shares = torch.tensor([[[0.5, 0.25], [0.5, 0.75]], [[0.3, 0.3], [0.7, 0.7]]], dtype=torch.float64)
    mean, own = [0.375, 0.625], [[0.5, 0.5], [0.25, 0.75]]
    by_hand = -np.dot(mean, np.log2(mean)) + np.mean([np.dot(p, np.log2(p)) for p in own])
    np.testing.assert_allclose(information(shares), [by_hand, 0], atol=1e-12)


def test_a_category_that_uses_one_expert_stands_out_of_shuffled_labels(world):
    result = asked(DOMAIN, planted(world))
    assert result.values[0, 5, 0] == pytest.approx(0.5)
    assert result.values[0, 5, 0] > result.null.high[0, 5, 0]
    assert result.facts["permutation p"] == 1 / 500
    told = [result.facts[f"layer {n}: information (bits)"] for n in world.SHAPE.layers]
    assert told[0] > 10 * max(told[1:])


def test_blind_routing_tells_nothing_of_the_category(world):
    result = evaluate(DOMAIN, world.inputs_for(DOMAIN, 5), {})
    assert result.facts["permutation p"] > 0.05
    inside = (result.values >= result.null.low) & (result.values <= result.null.high)
    assert inside.mean() > 0.85


def test_one_category_has_no_labels_to_shuffle(world):
    state = planted(world)
    result = asked(DOMAIN, state.labelled({key: "all" for key in state.prompts.keys}))
    assert result.null == Reason("1 category: there are no labels to shuffle")
    assert result.values.shape == (3, 6, 1)


def test_a_category_without_tokens_is_nan_and_the_other_is_not(world):
    result = asked(DOMAIN, state_of([[[2, 2]], [[0, 0]]], "ab", [2, 0]))
    np.testing.assert_array_equal(np.isnan(result.values[0]), [[False, True], [False, True]])
    assert any(caveat.startswith("NaN: a category") for caveat in result.caveats)


def test_difference_of_shares_of_tokens_by_hand():
    state = state_of([[[4, 4, 0]], [[1, 0, 1]], [[0, 3, 3]]], "aab", [4, 1, 3])
    result = asked(CONTRAST, state)
    np.testing.assert_allclose(result.values, [[5 / 5 - 0, 4 / 5 - 1, 1 / 5 - 1]])
    assert (result.facts["first"], result.facts["second"]) == ("a", "b")
    assert result.facts["most of the first"] == "layer 0 E0"
    assert result.facts["most of the second"] == "layer 0 E2"
    np.testing.assert_allclose(asked(CONTRAST, state, first=1, second=0).values, -result.values)


def test_all_others_are_the_rest_together():
    state = state_of([[[2, 2, 0]], [[2, 0, 2]], [[0, 2, 2]]], "abc", [2, 2, 2])
    result = asked(CONTRAST, state, first=1, second=-1)
    np.testing.assert_allclose(result.values, [[1 - 2 / 4, 0 - 4 / 4, 1 - 2 / 4]])
    assert result.facts["second"] == "all others"


def test_a_planted_expert_is_the_only_one_found(world):
    result = asked(CONTRAST, planted(world, lengths=(60,) * 16))
    beyond = np.abs(result.values) > result.null.high
    assert beyond[0, 5] and not beyond[1:].any()
    assert result.facts["most of the first"] == "layer 1 E5"
    assert result.facts["p of the largest"] == 1 / 1000
    assert result.facts["experts beyond the band"] == beyond.sum()
    assert 1 <= result.facts["experts at 5 % false discovery rate"] <= 6


def test_the_largest_of_all_experts_rarely_leaves_the_band_by_chance(world):
    """Family-wise: of 40 blind worlds about 2 have any expert beyond it, of 18 experts each."""
    outside = 0
    for seed in range(40):
        state = world.state_of("prompt_counts", [world.routes(seed, lengths=(20,) * 12)])
        result = CONTRAST.null(state, first=0, second=1, generator=torch.Generator().manual_seed(seed))
        outside += result.facts["experts beyond the band"] > 0
    assert outside <= 6


def test_discoveries_are_those_of_benjamini_and_hochberg(world):
    from analysis.measures.expert_contrast import _discoveries

    generator = torch.Generator().manual_seed(0)
    observed, spread = torch.randn(3, 6, generator=generator).double() * 3, torch.ones(3, 6).double()
    spread[0, 0] = 0
    p = 2 * norm.sf(observed.flatten()[1:].abs().numpy())
    assert _discoveries(observed, spread) == (false_discovery_control(p) <= 0.05).sum() > 0
    assert _discoveries(observed, spread * 0) == 0


@pytest.mark.parametrize(
    ("knobs", "right"),
    [
        ({"first": 0, "second": 0}, "two different categories"),
        ({"first": -1}, "'first' is -1; it takes a whole number, 0 to"),
        ({"second": -2}, "'second' is -2; it takes a whole number, -1 to"),
    ],
)
def test_senseless_pairs_of_categories_are_refused(knobs, right, world):
    with pytest.raises(BadKnob, match=right):
        asked(CONTRAST, planted(world), **knobs)


def test_a_category_that_is_not_there_is_refused_with_those_that_are(world):
    with pytest.raises(TooFew, match="2 categories: a, b"):
        asked(CONTRAST, planted(world), second=2)


def test_a_category_in_one_block_is_told_with_the_interval():
    state = state_of([[[2, 2, 0]]] * 9, ["a"] * 8 + ["b"], [2] * 9)
    assert any("All prompts of b lie in one block" in caveat for caveat in asked(CONTRAST, state).caveats)


def test_one_layer_of_three_tells_the_category_and_the_others_do_not(world):
    result = asked(DOMAIN, planted(world, lengths=(60,) * 16))
    assert result.facts["layers that tell the category (corrected)"] == 1
    assert result.facts["p of the layer that tells most (corrected)"] == 1 / 500


def test_the_largest_of_the_layers_keeps_the_error_of_all_of_them():
    generator = torch.Generator().manual_seed(0)
    found = [beyond(above_the_largest(torch.randn(200, 16, generator=generator).double()))[0] > 0 for _ in range(200)]
    # Sixteen layers, each at 5 %, would be found in more than half of the worlds.
    assert sum(found) <= 19
    numbers = torch.cat([torch.full((1, 2), 9.0), torch.zeros(99, 2)]).double()
    assert beyond(above_the_largest(numbers)) == (2, 1 / 100)
    numbers[0, 1] = torch.nan
    assert beyond(above_the_largest(numbers))[0] == 1
    assert np.isnan(beyond(above_the_largest(numbers * torch.nan))[1])
