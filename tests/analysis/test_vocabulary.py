"""Token ids against experts: by hand, planted, shuffled, and with as few tokens per id as there are."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.result import Reason

WORDS, SPLIT = get("vocabulary_specialisation"), get("token_context_split")


def side_of(batch, world):
    return (Inputs(batch.shape, {"token_routes": world.state_of("token_routes", [batch])}),)


def said(tokens, experts, world, following=None):
    """One layer, one expert a token: ids and the experts they reached, all in one prompt."""
    shape = dataclasses.replace(world.SHAPE, layers=("0",), top_k=1)
    batch = world.take(world.routes(shape=shape, lengths=(len(tokens), 1)), range(len(tokens)))
    ids = torch.tensor(tokens)
    following = ids if following is None else torch.tensor(following)
    keys = dataclasses.replace(batch.keys, token=ids, next=following, predicted=following)
    indices, one = torch.tensor(experts)[None, :, None], torch.ones(1, len(tokens), 1)
    return dataclasses.replace(batch, keys=keys, indices=indices, weights=one)


def by_token(world, lengths=(30,) * 16):
    """Every token's first expert is its id modulo 6."""
    batch = world.routes(lengths=lengths)
    first = (batch.keys.token % 6).expand(3, -1)
    second = (first + 1) % 6
    return dataclasses.replace(batch, indices=torch.stack([first, second], -1))


def test_mean_over_ids_by_hand_and_singletons_raise_it(world):
    """Id 7: two of three tokens at expert 0; id 8: one of two; id 9 occurs once."""
    side = side_of(said([7, 7, 7, 8, 8, 9], [0, 0, 1, 2, 3, 4], world), world)
    for least, expected, ids in ((3, 2 / 3, 1), (2, (2 / 3 + 1 / 2) / 2, 2), (1, (2 / 3 + 1 / 2 + 1) / 3, 3)):
        result = evaluate(WORDS, side, {"min_count": least})
        assert float(result.values[0]) == pytest.approx(expected, abs=1e-12)
        assert result.facts["ids"] == ids
        assert result.facts["mean over layers without a minimum count"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)


def test_the_next_id_leaves_out_the_end_of_a_prompt(world):
    batch = said([7, 7, 8, 8], [0, 1, 2, 2], world, following=[8, 8, 8, -1])
    result = evaluate(WORDS, side_of(batch, world), {"id_of": "next", "min_count": 1})
    assert result.facts["ids"] == 1 and result.facts["tokens of these ids"] == 3
    assert float(result.values[0]) == pytest.approx(1 / 3)
    assert float(evaluate(WORDS, side_of(batch, world), {"min_count": 1}).values[0]) == pytest.approx(3 / 4)


def test_the_first_expert_is_the_heaviest_whatever_its_slot(world):
    batch = by_token(world)
    turned = dataclasses.replace(
        batch, indices=batch.indices.flip(-1), weights=batch.weights.flip(-1), served=batch.served.flip(-1)
    )
    one, other = (evaluate(WORDS, side_of(b, world), {}).values for b in (batch, turned))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, 1)


def test_routing_by_id_is_all_the_id_and_far_above_shuffled_ids(world):
    side = side_of(by_token(world), world)
    words, split = evaluate(WORDS, side, {}), evaluate(SPLIT, side, {})
    assert (words.values > words.null.high + 0.3).all()
    np.testing.assert_allclose(split.values[:, 1], 0, atol=1e-12)
    assert (split.values[:, 0] > split.null.high[:, 0]).all()
    assert split.facts["share decided by the id, mean over layers"] == pytest.approx(1)


def test_blind_routing_is_all_context_and_within_shuffled_ids(world):
    side = side_of(world.routes(7, lengths=(60,) * 16), world)
    words, split = evaluate(WORDS, side, {}), evaluate(SPLIT, side, {})
    np.testing.assert_allclose(split.values[:, 0], 0, atol=0.02)
    np.testing.assert_allclose(split.values[:, 1], np.log2(6), atol=0.03)
    assert (np.abs(words.values - words.null.mean) < words.null.high - words.null.low).all()


def test_entropies_by_hand_and_against_scipy(world):
    side = side_of(said([7] * 4 + [8] * 2, [0, 0, 1, 2, 3, 3], world), world)
    plain = evaluate(SPLIT, side, {"correction": "none", "min_count": 1}).values[0]
    left = (4 * entropy([2, 1, 1], base=2) + 2 * 0) / 6
    np.testing.assert_allclose(plain, [entropy([2, 1, 1, 2], base=2) - left, left], atol=1e-12)
    corrected = evaluate(SPLIT, side, {"min_count": 1}).values[0]
    more_left, more_whole = 4 / 6 * 2 / (2 * 4) / np.log(2), 3 / (2 * 6) / np.log(2)
    np.testing.assert_allclose(corrected, [plain[0] + more_whole - more_left, plain[1] + more_left], atol=1e-12)


def test_both_parts_add_up_to_the_entropy_of_the_expert(world):
    side = world.inputs_for(SPLIT, lengths=(30,) * 16)
    result = evaluate(SPLIT, side, {"correction": "none", "min_count": 1})
    (state,) = side[0].states.values()
    for layer in range(3):
        loads = torch.bincount(state["indices"][:, layer, 0].long(), minlength=6).numpy()
        assert result.values[layer].sum() == pytest.approx(entropy(loads, base=2), abs=1e-9)


def test_correction_takes_out_most_of_what_few_tokens_add(world):
    side = side_of(world.routes(8, lengths=(15,) * 16), world)
    # On shuffled ids, averaged over 99 of them, all that is left is bias.
    biased, corrected = (evaluate(SPLIT, side, {"correction": c}).null.mean[:, 0] for c in ("none", "miller_madow"))
    assert biased.min() > 0.15
    assert np.abs(corrected).max() < 0.2 * biased.min()


def test_half_and_half_is_split_in_half(world):
    """Half of the tokens go by their id, half blindly: the id decides log2 6 minus the entropy of that mixture."""
    batch, blind = by_token(world, (400,) * 16), world.routes(9, lengths=(400,) * 16)
    coin = torch.rand(len(batch.keys), generator=torch.Generator().manual_seed(0)) < 0.5
    mixed = torch.where(coin[None, :, None], batch.indices, blind.indices)
    split = evaluate(SPLIT, side_of(dataclasses.replace(batch, indices=mixed), world), {})
    share = np.array([1 / 2 + 1 / 12] + [1 / 12] * 5)
    np.testing.assert_allclose(split.values[:, 1], entropy(share, base=2), atol=0.02)
    np.testing.assert_allclose(split.values[:, 0], np.log2(6) - entropy(share, base=2), atol=0.02)


@pytest.mark.parametrize("measure", [WORDS, SPLIT])
def test_without_ids_that_occur_often_enough_there_is_no_number(measure, world):
    result = evaluate(measure, side_of(world.routes(lengths=(2,) * 16), world), {"min_count": 50})
    assert np.isnan(result.values).all()
    assert "NaN: no id occurs 50 times in these prompts." in result.caveats
    assert result.null == Reason("no id occurs 50 times")
    with pytest.raises(BadKnob, match="'min_count' is 0; it takes a whole number, 1 to"):
        evaluate(measure, side_of(by_token(world), world), {"min_count": 0})


def test_identity_experts_are_nobody_s_first_choice(world):
    batch = by_token(world)
    indices = batch.indices.clone()
    indices[0, :, 0], indices[1] = 6, 7
    result = evaluate(WORDS, side_of(dataclasses.replace(batch, indices=indices), world), {})
    np.testing.assert_array_equal(np.isnan(result.values), [False, True, False])
    np.testing.assert_array_equal(result.values[[0, 2]], 1)
    assert "NaN: a layer that chose identity experts only." in result.caveats


BEYOND, ITS_P = "bits from the category beyond the id, over shuffled ones", "permutation p of the category"


def test_a_category_that_turns_the_ids_round_tells_a_bit_beyond_them(world):
    """Every id goes to one of two experts of its own, by category: of the 1 bit left open the category decides all."""
    batch = world.routes(lengths=(60,) * 16)
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    first = (batch.keys.token % 3 + 3 * second).expand(3, -1)
    batch = dataclasses.replace(batch, indices=torch.stack([first, (first + 1) % 6], -1))
    result = evaluate(SPLIT, side_of(batch, world), {})
    np.testing.assert_allclose(result.values[:, 1], 1, atol=0.05)
    # Shuffled categories of sixteen prompts still tell a little of the true ones.
    assert 0.85 < result.facts[BEYOND] < 1
    assert result.facts[ITS_P] == 1 / 100


def test_a_category_that_only_changes_the_words_tells_nothing_beyond_them(world):
    batch = by_token(world, (60,) * 16)
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    keys = dataclasses.replace(batch.keys, token=torch.where(second, batch.keys.token + 12, batch.keys.token))
    result = evaluate(SPLIT, side_of(dataclasses.replace(batch, keys=keys), world), {})
    assert result.facts[BEYOND] == pytest.approx(0, abs=1e-9)
    blind = evaluate(SPLIT, side_of(world.routes(11, lengths=(60,) * 16), world), {})
    assert blind.facts[ITS_P] > 0.05 and abs(blind.facts[BEYOND]) < 0.02
