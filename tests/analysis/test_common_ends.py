"""Sides of different tokenizers: what is compared token by token reads the tokens that end at the same character."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.common_ends import at_common_ends
from analysis.errors import NotComparable
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.statistic import get as statistic

LENGTHS = (40, 33, 28, 36) * 4
ORDERS = torch.tensor([[3, 0, 5, 1, 2, 4], [1, 2, 3, 4, 5, 0], [5, 4, 3, 2, 1, 0]])


def spelt(batch, ends):
    """The batch under these ends of its tokens, whose ids and places in their prompts are counted anew."""
    prompt = batch.keys.prompt
    starts = torch.bincount(prompt).cumsum(0) - torch.bincount(prompt)
    place = torch.arange(len(prompt)) - starts[prompt]
    span = torch.stack([ends - 1, ends], -1)
    return dataclasses.replace(batch, keys=dataclasses.replace(batch.keys, position=place, token=ends + 7, span=span))


def two_cuts(world):
    """One text cut into characters, and into words of two: the same router, read where a word ends."""
    batch = world.routes(lengths=LENGTHS)
    ends = batch.keys.position + 1
    fine, words = spelt(batch, ends), (ends % 2 == 0).nonzero()[:, 0]
    return fine, spelt(world.take(batch, words), ends[words])


def side(world, batch):
    return Inputs(world.SHAPE, {"token_routes": world.state_of("token_routes", [batch])})


@pytest.fixture(scope="module")
def cuts(world):
    return tuple(side(world, batch) for batch in two_cuts(world))


def test_one_router_read_by_two_tokenizers_agrees_with_itself_wherever_both_end(cuts):
    found = evaluate(get("routing_agreement"), cuts, {"matching": "identity"})
    assert np.array_equal(found.values, np.ones(3)), "whole words, read at their last character"
    words = sum(length // 2 for length in LENGTHS)
    told = next(c for c in found.caveats if "different tokens" in c)
    assert f"({sum(LENGTHS):,}, {words:,})" in told and f"the {words:,} that end" in told


def test_the_answer_is_that_of_the_shared_tokens_alone(world, cuts):
    own = [side(world, world.routes(seed=1, lengths=LENGTHS)), cuts[1]]
    own[0].states["token_routes"].arrays["end"].copy_(cuts[0].token_routes["end"])
    kept = own[0].token_routes["end"] % 2 == 0
    by_hand = {name: array[kept] for name, array in own[0].token_routes.arrays.items()}
    by_hand |= {name: cuts[1].token_routes[name] for name in ("position", "token")}
    cut = dataclasses.replace(own[0].token_routes, arrays=by_hand)
    other = dataclasses.replace(own[0], states=own[0].states | {"token_routes": cut})
    for name in ("routing_agreement", "prompt_difference"):
        ours, theirs = (evaluate(get(name), (one, cuts[1]), {"matching": "identity"}) for one in (own[0], other))
        assert not np.isnan(ours.values).all()
        assert ours.to_json() | {"caveats": ()} == theirs.to_json() | {"caveats": ()}


def test_experts_of_other_numbers_are_found_by_the_tokens_both_end(world):
    fine, words = two_cuts(world)
    back = torch.stack([order[row] for order, row in zip(ORDERS, words.indices, strict=True)])
    renamed = side(world, dataclasses.replace(words, indices=back))
    sides = side(world, fine), renamed
    matching = evaluate(get("expert_matching"), sides, {"evidence": "co-selection", "show": "matched"})
    assert np.array_equal((~np.isnan(matching.values)).argmax(-1), ORDERS.numpy())
    assert np.array_equal(evaluate(get("routing_agreement"), sides, {}).values, np.ones(3))


def test_of_several_tokens_at_one_character_the_last_is_read(world, cuts):
    batch = two_cuts(world)[0]
    pairs = side(world, spelt(batch, (batch.keys.position + 2) // 2 * 2))  # two bytes of each character of two
    whole = side(world, two_cuts(world)[1])
    assert evaluate(get("routing_agreement"), (pairs, whole), {"matching": "identity"}).values.tolist() == [1, 1, 1]
    assert len(at_common_ends((pairs, whole))[0][0].token_routes["end"]) == sum(length // 2 for length in LENGTHS)


def test_tokens_outside_the_text_are_not_compared(world, cuts):
    batch = two_cuts(world)[0]
    first = batch.keys.position == 0
    answered = side(world, spelt(batch, torch.where(first, -1, batch.keys.position + 1)))
    found, told = at_common_ends((answered, cuts[0]))
    assert all(len(one.token_routes["end"]) == sum(LENGTHS) - len(LENGTHS) for one in found) and len(told) == 1
    assert all(bool((one.token_routes["end"] >= 0).all()) for one in found)


def test_sides_of_one_tokenizer_stay_whole(cuts):
    found, told = at_common_ends((cuts[0], cuts[0], cuts[0]))
    assert found == (cuts[0],) * 3 and told == ()


def test_of_three_sides_only_what_all_share_is_left(world, cuts):
    batch = two_cuts(world)[0]
    ends = batch.keys.position + 1
    thirds = (ends % 3 == 0).nonzero()[:, 0]
    third = side(world, spelt(world.take(batch, thirds), ends[thirds]))
    found, told = at_common_ends((*cuts, third))
    assert all(bool((one.token_routes["end"] % 6 == 0).all()) for one in found) and "every side" in told[0]
    assert [len(one.token_routes["end"]) for one in found] == [sum(length // 6 for length in LENGTHS)] * 3


def test_tokens_that_never_end_together_are_refused(world, cuts):
    batch = two_cuts(world)[0]
    nowhere = side(world, spelt(batch, torch.full_like(batch.keys.position, -1)))
    with pytest.raises(NotComparable, match="end at the same characters"):
        evaluate(get("routing_agreement"), (nowhere, cuts[1]), {"matching": "identity"})


def test_ends_are_kept_with_the_routes(world):
    batch = two_cuts(world)[0]
    assert torch.equal(world.state_of("token_routes", [batch])["end"].long(), batch.keys.span[:, 1])
    assert "end" in statistic("token_routes").arrays
