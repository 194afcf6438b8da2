"""Planted subspaces, through statistic, measure and framework: what each distance and overlap must say."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.manifolds.grassmann import random_angles
from analysis.measure import Inputs, get
from analysis.result import Reason
from analysis.subspaces import cut, halves, split_half
from tests.analysis.clouds import HELD, MODEL, ROWS, N, cloud, common, generator, rotation, routed, span

MEASURES = ("grassmann_distance", "subspace_overlap", "principal_angles")


def ask(name, state, **knobs):
    states = {"routed_rows": state, "common_rows": common(torch.zeros(1, state.shape.model))}
    states = {each: states[each] for each in get(name).statistics}
    return evaluate(get(name), (Inputs(state.shape, states),), {"n": N, **knobs})


def test_identical_experts_are_at_no_distance():
    same = cloud(span(0), 1, noise=0.1)
    state = routed([same, same, cloud(span(5), 2, noise=0.1)])
    assert ask("grassmann_distance", state).values[0, 0, 1] < 1e-12
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(1, abs=1e-12)
    assert ask("principal_angles", state, pair="nearest").values.max() < 1e-12


def test_the_same_directions_in_another_basis_are_the_same_subspace():
    """Rows mixed within their span, so that axes and variances change and the subspace does not."""
    axes = span(0)
    first, second = cloud(axes, 1), cloud(rotation(3, N) @ axes, 2)
    state = routed([first, second])
    assert ask("grassmann_distance", state).values[0, 0, 1] < 1e-11
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
def test_rotating_all_inputs_changes_nothing():
    clouds = [cloud(span(e), e, noise=0.3) for e in range(4)]
    turn = rotation(9, MODEL)
    for name in MEASURES:
        before, after = ask(name, routed(clouds)), ask(name, routed([x @ turn for x in clouds]))
        np.testing.assert_allclose(after.values, before.values, rtol=0, atol=1e-9, err_msg=name)


def test_a_rotated_copy_is_as_far_as_the_rotation_takes_it():
    axes, angle = torch.eye(MODEL, dtype=torch.float64), 0.4
    tilted = math.cos(angle) * axes[:N] + math.sin(angle) * axes[N : 2 * N]
    state = routed([cloud(axes[:N], 1), cloud(tilted, 2)])
    assert ask("grassmann_distance", state).values[0, 0, 1] == pytest.approx(math.sqrt(N) * angle, abs=1e-9)
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(math.cos(angle) ** 2, abs=1e-9)
    np.testing.assert_allclose(ask("principal_angles", state).values[0], [angle] * N, atol=1e-9)


def test_disjoint_experts_are_at_the_maximum():
    axes = torch.eye(MODEL, dtype=torch.float64)
    state = routed([cloud(axes[:N], 1), cloud(axes[N : 2 * N], 2)])
    distance = ask("grassmann_distance", state).values[0, 0, 1]
    assert distance**2 == pytest.approx(N * math.pi**2 / 4, abs=1e-9)
    assert ask("grassmann_distance", state, form="normalised").values[0, 0, 1] == pytest.approx(1, abs=1e-9)
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(0, abs=1e-12)


def test_nested_experts_share_what_the_smaller_has():
    """Two axes in common, two orthogonal: half the overlap, and two right angles."""
    axes = torch.eye(MODEL, dtype=torch.float64)
    state = routed([cloud(axes[:4], 1), cloud(axes[[0, 1, 10, 11]], 2)])
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(0.5, abs=1e-12)
    assert ask("grassmann_distance", state).values[0, 0, 1] == pytest.approx(math.pi / 2 * math.sqrt(2), abs=1e-9)
    angles = ask("principal_angles", state).values[0]
    np.testing.assert_allclose(angles, [0, 0, math.pi / 2, math.pi / 2], atol=1e-9)


def test_a_collapsed_expert_has_no_subspace_and_harms_no_other():
    whole = [cloud(span(e), e, noise=0.2) for e in range(3)]
    still = torch.ones(ROWS, MODEL, dtype=torch.float64)
    for name in ("grassmann_distance", "subspace_overlap"):
        before, after = ask(name, routed(whole)), ask(name, routed([*whole, still]))
        assert np.isnan(after.values[0, 3]).all() and np.isnan(after.values[0, :, 3]).all(), name
        np.testing.assert_allclose(after.values[0, :3, :3], before.values[0], rtol=0, atol=1e-12, err_msg=name)
        assert any(caveat.startswith("NaN: 1 of 4 experts") for caveat in after.caveats)
        assert after.facts["pairs"] == 3


def test_a_dead_expert_and_one_of_few_rows_have_no_subspace():
    clouds = [cloud(span(e), e, noise=0.2) for e in range(3)]
    state = routed([*clouds, clouds[0][:0], clouds[1][:N]])
    result = ask("grassmann_distance", state, matched=False)
    assert np.isnan(result.values[0, 3:]).all() and not np.isnan(result.values[0, :3, :3]).any()
    assert any(f"2 of 5 experts have fewer than {N + 1} sampled rows" in c for c in result.caveats)
    assert result.facts["pairs"] == 3


def test_a_layer_without_any_rows_has_no_numbers():
    empty = torch.zeros(0, MODEL, dtype=torch.float64)
    state = routed([empty, empty, empty])
    for name in MEASURES:
        result = ask(name, state)
        off = result.values[0][~np.eye(3, dtype=bool)] if name != "principal_angles" else result.values
        assert np.isnan(off).all(), name
        assert any(caveat.startswith("NaN: 3 of 3 experts") for caveat in result.caveats), name


def test_all_experts_give_as_many_rows_as_the_smallest_that_has_enough():
    clouds = [cloud(span(e), e, rows=r, noise=0.2) for e, r in enumerate((120, 90, 30, 6))]
    result = ask("grassmann_distance", routed(clouds))
    assert result.facts["rows per expert"] == 30
    assert np.isnan(result.values[0, 3, 0]) and not np.isnan(result.values[0, 2, 0])
    fewer = ask("grassmann_distance", routed([x[:30] for x in clouds[:3]]))
    np.testing.assert_allclose(result.values[0, :3, :3], fewer.values[0], rtol=0, atol=1e-12)
    assert ask("grassmann_distance", routed(clouds), matched=False).facts["rows per expert"] == "5 to 120"


def test_a_larger_subspace_than_half_of_the_space_is_cut():
    size = cut(torch.full((1, 3), 100), 30, 40, True)
    assert (size.axes, size.rows, size.least) == (20, 100, 100)
    result = ask("subspace_overlap", routed([cloud(span(e, 6), e, noise=1) for e in range(2)]), n=30)
    assert any("Only 20 of 30 axes" in caveat for caveat in result.caveats)


@pytest.mark.parametrize("name", MEASURES)
def test_a_subspace_has_at_least_one_axis(name):
    with pytest.raises(BadKnob, match="'n' is 0; it takes a whole number, 1 to"):
        ask(name, routed([cloud(span(e), e) for e in range(2)]), n=0)


def test_the_floor_and_the_score_tell_sampling_from_structure():
    """Experts 0 and 1 see the same distribution, expert 2 another: only it scores."""
    axes = span(0, N)
    same = [cloud(axes, seed, noise=0.5, rows=240) for seed in (1, 2)]
    other = cloud(span(7, N), 3, noise=0.5, rows=240)
    state = routed([*same, other])
    raw, score = ask("grassmann_distance", state), ask("grassmann_distance", state, form="score")
    assert raw.values[0, 0, 1] > 0.1
    assert abs(score.values[0, 0, 1]) < 0.1
    assert score.values[0, 0, 2] == pytest.approx(1, abs=0.15)
    assert raw.facts["split-half floor"] < raw.values[0, 0, 2] < raw.facts["random"] + 0.4
    assert 0.4 < raw.facts["score between"] < 0.8
    split = split_half(state, N, "scaled", lambda angles: angles.square().sum(-1).sqrt())
    assert float(split.within.mean()) == pytest.approx(raw.facts["split-half floor"], rel=1e-12)


@pytest.mark.slow
def test_an_expert_with_enough_rows_for_a_distance_has_a_score_and_one_whose_rows_are_of_one_half_says_why_not():
    """Four rows an axis of all prompts: 16; two of each half: 8."""
    clouds = [cloud(span(e), e, rows=r, noise=0.1) for e, r in enumerate((120, 100, 24))]
    state = routed(clouds)
    known, halved = ask("grassmann_distance", state, form="score"), ask("grassmann_distance", one_sided(state))
    assert not np.isnan(known.values).any() and known.facts["rows per half"] == 8
    assert not np.isnan(halved.values).any()
    lost = ask("grassmann_distance", one_sided(state), form="score")
    assert np.isnan(lost.values[0, 2]).all() and not np.isnan(lost.values[0, :2, :2]).any()
    assert any(c == "NaN: 1 of 3 experts have too few sampled rows in a half of prompts." for c in lost.caveats)


def one_sided(state):
    """The last expert's rows all from even blocks."""
    block = state["block"].clone()
    block[0, -1] = torch.where(block[0, -1] < 0, -1, block[0, -1] // 2 * 2)
    return dataclasses.replace(state, arrays={**state.arrays, "block": block})


def test_halves_share_no_prompt_and_hold_whatever_block_is_left_out():
    state = routed([cloud(span(0), 1)])
    first, second = halves(state)
    assert not set(first) & set(second) and set(first) | set(second) == set(HELD.blocks)
    for block in HELD.blocks:
        left = halves(state.without_block(block))
        assert left == tuple(tuple(b for b in half if b != block) for half in (first, second))


@pytest.mark.slow
def test_the_interval_of_a_score_is_wider_than_samples_differ_but_not_by_much():
    """Two experts to a subspace, so that scores are 0 and about 1; halves dealt anew for each block gave 6.3 times."""
    scores, widths, pairs = [], [], np.triu_indices(6, 1)
    for seed in range(5):
        clouds = [cloud(span(e // 2), 100 * seed + e, rows=240, noise=0.8) for e in range(6)]
        result = ask("grassmann_distance", routed(clouds), form="score", n=2)
        scores.append(result.values[0][pairs])
        widths.append((result.interval.high - result.interval.low)[0][pairs] / 2)
    spread = np.std(scores, axis=0, ddof=1).mean()
    assert 2.36 < np.mean(widths) / spread < 5.5


@pytest.mark.slow
def test_without_structure_there_is_no_score():
    round_ones = [torch.randn(ROWS, MODEL, dtype=torch.float64, generator=generator(e)) for e in range(12)]
    result = ask("grassmann_distance", routed(round_ones), form="score")
    scores = result.values[0][np.triu_indices(12, 1)]
    assert np.isnan(scores).mean() > 0.9 and (np.abs(scores[~np.isnan(scores)]) < 3).all()
    assert any(f"in {np.isnan(scores).sum()} of 66 pairs two halves of an expert's tokens" in c for c in result.caveats)


def test_unrelated_experts_fall_into_the_band():
    clouds = [cloud(span(e), e, noise=0.05) for e in range(12)]
    for name in ("grassmann_distance", "subspace_overlap"):
        result = ask(name, routed(clouds))
        first, second = np.triu_indices(12, 1)
        values = result.values[0, first, second]
        low, high = (
            np.broadcast_to(b, result.values.shape)[0, first, second] for b in (result.null.low, result.null.high)
        )
        assert 0.88 < ((low <= values) & (values <= high)).mean(), name
        assert values.mean() == pytest.approx(np.broadcast_to(result.null.mean, (1, 12, 12))[0, 0, 1], rel=0.03), name
    assert ask("subspace_overlap", routed(clouds)).null.mean[0, 1] == pytest.approx(N / MODEL)
    assert isinstance(ask("principal_angles", routed(clouds), pair="farthest").null, Reason)


@pytest.mark.slow
def test_the_mean_over_pairs_of_unrelated_experts_has_a_band_of_its_own():
    """The fewer experts, the wider."""
    measure, held, widths = get("principal_angles"), [], []
    knobs = measure.settle({"n": N})
    for seed in range(8):
        for start, experts in ((0, 3), (3, 9)):
            spans = (span(20 * seed + start + e) for e in range(experts))
            state = routed([cloud(axes, e, noise=0.01) for e, axes in enumerate(spans)])
            states = (state, common(torch.zeros(1, MODEL)))
            chance = measure.null(*states, **knobs, generator=generator(seed))
            values = measure.function(*states, **knobs).values
            assert chance.low.shape == values.shape
            held.append(((chance.low <= values) & (values <= chance.high)).numpy())
            widths.append(float((chance.high - chance.low).mean()))
    assert 0.88 < np.mean(held) < 0.995
    one = random_angles(N, MODEL, 2000, generator(0)).std(0).mean()
    # Pairs of uniformly random subspaces are independent two by two: the variance of a mean is that of one by number.
    for width, pairs in ((np.mean(widths[::2]), 3), (np.mean(widths[1::2]), 36)):
        assert width / (2 * 1.96 * float(one) / math.sqrt(pairs)) == pytest.approx(1, abs=0.08)


def test_experts_that_share_a_little_are_outside_the_band_of_the_mean():
    shared = span(0)[:1]
    clouds = [cloud(torch.cat([shared, span(e + 1)[1:]]), e, noise=0.01) for e in range(8)]
    result = ask("principal_angles", routed(clouds))
    assert (result.values < result.null.low)[0, 0]
    few = ask("principal_angles", routed(clouds[:1]))
    assert np.isnan(few.null.low).all() and np.isnan(few.values).all()


def test_the_nearest_and_the_farthest_pair_bracket_the_mean():
    clouds = [cloud(span(e), e, noise=0.05) for e in range(5)]
    distances = ask("grassmann_distance", routed(clouds)).values[0][np.triu_indices(5, 1)]
    for pair, expected in (("nearest", distances.min()), ("farthest", distances.max())):
        angles = ask("principal_angles", routed(clouds), pair=pair).values[0]
        assert np.sqrt((angles**2).sum()) == pytest.approx(expected, abs=1e-12)
        assert (np.diff(angles) >= 0).all()
