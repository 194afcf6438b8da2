"""Signatures of prompts: planted categories, worked effect sizes, prompts that are copies or empty."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.cosines import unit_rows
from analysis.effect import Group, cohens_d, label_codes, sizes_by_design, within_and_across
from analysis.errors import TooFew
from analysis.inference import evaluate
from analysis.measure import get
from analysis.prompt_pairs import distinct_pairs, pair_mean
from analysis.result import Reason
from analysis.signatures import ROWS, mean_cosines
from analysis.slots import Prompts, text_digest
from tests.analysis.two_tasks import planted, side_of


def test_effect_size_of_the_published_summary():
    within, across = (
        Group(*(torch.tensor(x, dtype=torch.float64) for x in row))
        for row in ((760, 0.8435, 0.0879), (2400, 0.6225, 0.1687))
    )
    assert float(cohens_d(within, across)) == pytest.approx(1.442, abs=5e-4)


def test_categories_with_experts_of_their_own_share_nothing(world):
    result = evaluate(get("signature_similarity"), side_of(planted(world, (200,) * 16), world), {})
    group = np.array(result.axes[0].groups)
    same = group[:, None] == group[None, :]
    assert result.values[same].min() > 0.95
    np.testing.assert_allclose(result.values[~same], 0, atol=1e-12)
    assert list(group) == sorted(group)


def test_the_effect_of_planted_categories_is_seen_in_every_layer(world):
    side = side_of(planted(world), world)
    within, across, effect = (
        evaluate(get("signature_effect"), side, {"quantity": q}) for q in ("within", "across", "cohens_d")
    )
    assert within.values.min() > 0.8
    np.testing.assert_allclose(across.values, 0, atol=1e-12)
    assert (effect.values > effect.null.high).all() and effect.values.min() > 3
    assert effect.facts["permutation p"] == 1 / 1000
    assert effect.facts["pairs"] == 16 * 15 / 2


def test_no_effect_in_blind_routing(world):
    result = evaluate(get("signature_effect"), world.inputs_for(get("signature_effect"), 3), {})
    assert result.facts["permutation p"] > 0.05
    assert abs(result.facts["Cohen's d"]) < 0.6


def test_batched_within_and_across_equal_the_double_loop(world):
    generator = torch.Generator().manual_seed(0)
    cosines = torch.rand(2, 7, 7, generator=generator, dtype=torch.float64)
    cosines[1, 2] = cosines[1, :, 2] = torch.nan
    labels = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [2, 0, 1, 0, 1, 1, 2]])
    pairs = torch.ones(7, 7, dtype=torch.bool).triu(1)
    pairs[0, 6] = False
    within, across = within_and_across(cosines, pairs, labels)
    for draw in range(2):
        for layer in range(2):
            kinds = {True: [], False: []}
            for i in range(7):
                for j in range(i + 1, 7):
                    if pairs[i, j] and not cosines[layer, i, j].isnan():
                        kinds[bool(labels[draw, i] == labels[draw, j])].append(float(cosines[layer, i, j]))
            for group, seen in ((within, kinds[True]), (across, kinds[False])):
                assert int(group.count[draw, layer]) == len(seen)
                assert float(group.mean[draw, layer]) == pytest.approx(np.mean(seen), abs=1e-12)
                assert float(group.sd[draw, layer]) == pytest.approx(np.std(seen, ddof=1), abs=1e-12)


def test_pairs_stand_for_those_of_categories_of_their_whole_size():
    """2, 3 and 2 prompts for 4 of each: every pair counts as often as its labels had pairs for each one left."""
    cosines = torch.rand(1, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, size = torch.tensor([2, 0, 1, 0, 1, 1, 2]), 4
    pairs = torch.ones(7, 7, dtype=torch.bool).triu(1)
    held = labels.bincount()
    for group, same in zip(
        within_and_across(cosines, pairs, labels[None], torch.full((3,), size)), (True, False), strict=True
    ):
        weights, seen = [], []
        for i, j in pairs.nonzero().tolist():
            a, b = labels[i], labels[j]
            if (a == b) == same:
                wanted, there = (size * (size - 1), held[a] * (held[a] - 1)) if same else (size**2, held[a] * held[b])
                weights.append(float(wanted / there))
                seen.append(float(cosines[0, i, j]))
        mean, total = np.average(seen, weights=weights), sum(weights)
        variance = np.average((np.array(seen) - mean) ** 2, weights=weights) * total / (total - 1)
        assert float(group.count) == pytest.approx(total) == (3 * 6 if same else 3 * 16)
        assert (float(group.mean), float(group.sd)) == (pytest.approx(mean), pytest.approx(variance**0.5))
    plain, whole = (within_and_across(cosines, pairs, labels[None], sizes) for sizes in (None, held))
    for group, other in zip(plain, whole, strict=True):
        torch.testing.assert_close(other.sd, group.sd)


def test_sizes_are_by_design_where_all_categories_had_equally_many_prompts():
    def left(categories, whole):
        names = tuple(map(str, range(len(categories))))
        return sizes_by_design(Prompts(names, names, tuple(categories), tuple(whole)))

    assert left("aab", "aaabbb").tolist() == [3, 3]
    assert left("aab", "") is None and left("aab", "aaabb") is None and left("aa", "aabb") is None


def test_a_prompt_is_not_paired_with_its_own_copy():
    digest = text_digest("same")
    prompts = Prompts(("x", "y", "z"), (digest, digest, text_digest("other")), ("a", "a", "b"))
    assert distinct_pairs(prompts).tolist() == [[False, False, True], [False, False, True], [False, False, False]]


@pytest.mark.parametrize("unknown", [False, True])
def test_the_mean_over_pairs_is_that_of_the_pairs_named_one_by_one(unknown):
    texts = ["a", "b", "a", "c", "d", "a", "b", "e"]
    prompts = Prompts(tuple("12345678"), tuple(map(text_digest, texts)), ("none",) * 8)
    similar = torch.rand(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    similar = similar + similar.mT
    if unknown:
        similar[3], similar[:, 3] = torch.nan, torch.nan
    named = similar[distinct_pairs(prompts)]
    mean, pairs = pair_mean(similar, prompts)
    assert (mean, pairs) == (pytest.approx(float(named.nanmean()), abs=1e-14), int((~named.isnan()).sum()))


def test_there_is_no_mean_over_pairs_of_copies_of_one_text():
    mean, pairs = pair_mean(
        torch.ones(2, 2, dtype=torch.float64), Prompts(("x", "y"), (text_digest("same"),) * 2, ("a",) * 2)
    )
    assert pairs == 0
    assert mean != mean


def test_similarity_of_more_prompts_than_a_block_holds_is_that_of_each_pair():
    unit = unit_rows(torch.rand(3, 2 * ROWS + 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    each = torch.einsum("lpe,lqe->pq", unit, unit) / 3
    torch.testing.assert_close(mean_cosines(unit), each, rtol=0, atol=1e-14)


def test_similarity_is_the_mean_of_layer_cosines_by_hand(world):
    (side,) = world.inputs_for(get("signature_similarity"))
    result = evaluate(get("signature_similarity"), (side,), {})
    state, ids = side.states["prompt_counts"], list(result.axes[0].labels)
    one, other = (state["selected"][list(state.prompts.ids).index(ids[i])].double() for i in (2, 9))
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(one, other, strict=True)]
    assert result.values[2, 9] == pytest.approx(sum(cosines) / 3, abs=1e-12)


def test_centred_signatures_forget_what_all_prompts_share(world):
    side = world.inputs_for(get("signature_similarity"))
    raw, centred = (evaluate(get("signature_similarity"), side, {"centred": c}).values for c in (False, True))
    off = ~np.eye(16, dtype=bool)
    assert raw[off].mean() > 0.5
    assert abs(centred[off].mean()) < 0.15


@pytest.mark.parametrize("name", ["signature_similarity", "signature_embedding", "signature_effect"])
def test_a_prompt_without_tokens_is_nan_and_leaves_the_others_alone(name, world):
    knobs = {"centred": True}
    full, empty = planted(world, (20,) * 16), planted(world, (20,) * 15 + (0,))
    rest = evaluate(get(name), side_of(empty, world), knobs)
    assert any(caveat.startswith("NaN: ") for caveat in rest.caveats)
    if name == "signature_effect":
        assert rest.facts["pairs"] == 15 * 14 / 2
        assert not np.isnan(rest.values).any()
        return
    row = rest.axes[0].labels.index(full.prompts.ids[15])
    assert np.isnan(rest.values[row]).all()
    assert int(np.isnan(rest.values).all(-1).sum()) == 1


def test_a_soft_router_is_compared_by_mean_combine_weight(world):
    soft = dataclasses.replace(world.SHAPE, top_k=6)
    side = world.inputs_for(get("signature_similarity"), shape=soft)
    result = evaluate(get("signature_similarity"), side, {})
    assert not np.isnan(result.values).any()
    assert "Signatures are mean combine weights: every token uses every expert." in result.caveats
    assert isinstance(result.null, Reason)
    counted = evaluate(get("signature_similarity"), side, {"weighting": "count"})
    assert np.isnan(counted.values).all()


def test_the_floor_of_short_prompts_follows_the_closed_form(world):
    result = evaluate(get("signature_similarity"), side_of(world.routes(lengths=(16,) * 16), world), {})
    off = ~np.eye(16, dtype=bool)
    assert result.null.mean[off].mean() == pytest.approx(1 / (1 + 4 / (16 * 2)), abs=0.01)


@pytest.mark.parametrize("categories", [("a",) * 4, ("a", "b", "c", "d"), ()])
def test_an_effect_needs_two_kinds_of_pair(categories):
    with pytest.raises(TooFew, match=f"{len(categories)} prompts in"):
        label_codes(categories)


def test_umap_is_slow_and_pca_is_not():
    measure = get("signature_embedding")
    assert measure.is_slow({"method": "umap"}) and not measure.is_slow({}) and not measure.slow


def test_distances_of_the_map_are_those_of_the_similarity(world):
    side = world.inputs_for(get("signature_embedding"))
    similar = evaluate(get("signature_similarity"), side, {}).values
    plane = evaluate(get("signature_embedding"), side, {})
    total = sum(v for k, v in plane.facts.items() if k.startswith("variance"))
    # All variance is mean squared distance over 2; what two coordinates hold of it is their share.
    whole = 2 * 3 * (1 - similar)
    held = ((plane.values[:, None] - plane.values[None]) ** 2).sum(-1)
    assert held.sum() / whole.sum() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("knobs", [{"neighbours": 1}, {"seed": -1}])
def test_a_senseless_neighbourhood_is_refused(knobs, world):
    from analysis.errors import BadKnob

    with pytest.raises(BadKnob, match=f"{next(iter(knobs))!r} is "):
        evaluate(get("signature_embedding"), world.inputs_for(get("signature_embedding")), knobs)


def test_equal_prompts_leave_nothing_to_spread(world):
    batch = world.routes(lengths=(1,) * 4)
    batch = dataclasses.replace(batch, indices=torch.zeros_like(batch.indices) + torch.tensor([0, 1]))
    with pytest.raises(TooFew, match="are the same"):
        evaluate(get("signature_embedding"), side_of(batch, world), {})
    assert math.isnan(evaluate(get("signature_effect"), side_of(batch, world), {}).values[0])
