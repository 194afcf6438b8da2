"""Distances of prompts to categories: by hand, planted, copied and short; and the band the others give."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State

MEASURE = get("signature_outlier")


def asked(selected, categories, tokens=None, digests=None, **knobs):
    """The answer for counts prompt by layer by expert as given."""
    selected = torch.as_tensor(selected)
    prompts, layers, experts = selected.shape
    ids = tuple(f"p{i:03d}" for i in range(prompts))
    shape = Shape(tuple(map(str, range(layers))), experts, 1, 4, 4)
    counts = selected[:, 0].sum(-1) if tokens is None else torch.as_tensor(tokens)
    arrays = {"selected": selected, "served": selected, "weights": selected.double(), "tokens": counts}
    texts = tuple(map(text_digest, digests or ids))
    state = State("prompt_counts", shape, Prompts(ids, texts, tuple(categories)), arrays)
    return evaluate(MEASURE, (Inputs(shape, {"prompt_counts": state}),), knobs)


def drawn(world, lengths, odd=None, seed=0):
    """Blind routing; prompt `odd` of category a uses only the last two experts."""
    batch = world.routes(seed, lengths=lengths)
    if odd is not None:
        here = (batch.keys.prompt == odd)[None, :, None]
        batch = dataclasses.replace(batch, indices=torch.where(here, torch.tensor([4, 5]), batch.indices))
    return (Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])}),)


def test_distances_to_the_rest_of_a_category_by_hand():
    result = asked([[[4, 0, 0]], [[0, 4, 0]], [[4, 4, 0]], [[0, 0, 8]]], "aaab")
    # Without itself: (0, 1) + (1/2, 1/2) over two; then the mirror image; then (1, 0) + (0, 1).
    expected = [1 - 0.25 / (0.25**2 + 0.75**2) ** 0.5, 1 - 0.25 / (0.25**2 + 0.75**2) ** 0.5, 0]
    np.testing.assert_allclose(result.values[:3, 0], expected, atol=1e-12)
    np.testing.assert_allclose(result.values[3, 0], 1, atol=1e-12)
    np.testing.assert_allclose(result.values[:3, 1], 1, atol=1e-12)
    assert np.isnan(result.values[3, 1])
    assert any(caveat.startswith("NaN: a category with no other prompt") for caveat in result.caveats)


def test_disjoint_categories_are_all_the_way_apart_and_identical_prompts_at_no_distance():
    result = asked([[[3, 3, 0, 0]]] * 3 + [[[0, 0, 5, 5]]] * 3, "aaabbb")
    np.testing.assert_allclose(result.values, [[0, 1]] * 3 + [[1, 0]] * 3, atol=1e-12)
    assert result.facts["nearest to their own category"] == 1


def test_the_prompt_that_uses_other_experts_is_the_outlier(world):
    result = evaluate(MEASURE, drawn(world, (40,) * 24, odd=6), {})
    row = result.axes[0].labels.index("p06")
    assert result.values[row, 0] > result.null.high[row, 0]
    assert result.facts["farthest"] == "p06"
    assert result.facts["outliers at 5 % false discovery rate"] == 1


def test_blind_prompts_are_seldom_outliers(world):
    found = [
        evaluate(MEASURE, drawn(world, (30,) * 20, seed=seed), {}).facts["outliers at 5 % false discovery rate"]
        for seed in range(10)
    ]
    assert sum(n > 0 for n in found) <= 3


def test_the_band_is_student_s_for_one_more_prompt_of_the_others(world):
    result = evaluate(MEASURE, drawn(world, (20,) * 12), {})
    others = result.values[1:6, 0]
    half = student.ppf(0.975, 4) * others.std(ddof=1) * (1 + 1 / 5) ** 0.5
    np.testing.assert_allclose(
        [result.null.low[0, 0], result.null.high[0, 0]], [others.mean() - half, others.mean() + half]
    )
    members = result.values[:6, 0]
    half = student.ppf(0.975, 5) * members.std(ddof=1) * (1 + 1 / 6) ** 0.5
    np.testing.assert_allclose(result.null.high[7, 0], members.mean() + half)


def test_weights_have_nothing_to_correct_and_say_so(world):
    ask = lambda **knobs: evaluate(MEASURE, drawn(world, (20,) * 12), knobs)  # noqa: E731
    plain, same = ask(weighting="weight"), ask(weighting="weight", corrected=True)
    np.testing.assert_array_equal(plain.values, same.values)
    said = [any("no counting noise" in c for c in found.caveats) for found in (plain, same, ask(corrected=True))]
    assert said == [False, True, False]


def test_a_copy_is_no_company():
    """Without its copy the first prompt has only the third to be near to."""
    selected = [[[4, 0, 0]], [[4, 0, 0]], [[0, 4, 0]]]
    apart = asked(selected, "aaa", digests=["x", "y", "z"])
    copied = asked(selected, "aaa", digests=["x", "x", "z"])
    np.testing.assert_allclose(apart.values[:2, 0], 1 - 2**-0.5, atol=1e-12)
    np.testing.assert_allclose(copied.values[:2, 0], 1, atol=1e-12)


def test_short_prompts_are_far_only_until_corrected(world):
    side = drawn(world, (10, 10, 150, 150) * 8)
    short = np.array([int(name[1:]) % 4 < 2 for name in evaluate(MEASURE, side, {}).axes[0].labels])
    gaps = []
    for corrected in (False, True):
        values = evaluate(MEASURE, side, {"corrected": corrected}).values
        gaps.append(values[short].mean() - values[~short].mean())
    assert gaps[0] > 0.08
    assert abs(gaps[1]) < 0.03


def test_corrected_distances_within_one_distribution_are_zero_on_average(world):
    values = evaluate(MEASURE, drawn(world, (40,) * 32), {"corrected": True}).values
    assert values.mean() == pytest.approx(0, abs=0.01)
    assert values.min() < 0


def test_an_empty_prompt_is_nan_and_nobody_s_neighbour(world):
    (side,) = drawn(world, (20,) * 16)
    state = side.states["prompt_counts"]
    blank = {name: array.clone() for name, array in state.arrays.items()}
    for array in blank.values():
        array[15] = 0
    empty, fewer = (
        evaluate(MEASURE, (Inputs(side.shape, {"prompt_counts": s}),), {})
        for s in (dataclasses.replace(state, arrays=blank), state.take(list(range(15))))
    )
    assert empty.axes[0].labels[15] == "p15" and np.isnan(empty.values[15]).all()
    np.testing.assert_allclose(empty.values[:15], fewer.values, atol=1e-12)
    assert empty.facts == pytest.approx(fewer.facts)


@pytest.mark.parametrize("seed", range(6))
def test_a_category_with_one_other_text_has_no_corrected_distance(seed):
    """What rounding leaves of one text's noise, divided by 0, had been the largest distance there is for some seeds."""
    drawn = torch.multinomial(torch.ones(8, 8) / 8, 30, True, generator=torch.Generator().manual_seed(seed))
    selected = torch.nn.functional.one_hot(drawn, 8).sum(1)[:, None]
    result = asked(selected, "aaaaabcc", corrected=True)
    assert np.isnan(result.values[6:, 2]).all() and np.isnan(result.values[:5, 1]).all()
    assert not np.isnan(result.values[:5, 0]).any() and not np.isnan(result.values[:5, 2]).any()
    told = [caveat.split(":")[1] for caveat in result.caveats if caveat.startswith("NaN: ")]
    assert len(told) == 2 and "no other prompt" in told[0] and "one other text" in told[1]
    assert not [c for c in asked(selected, "aaaaabbb", corrected=True).caveats if c.startswith("NaN: ")]


def test_one_token_cannot_be_corrected(world):
    result = evaluate(MEASURE, drawn(world, (20,) * 15 + (1,)), {"corrected": True})
    assert np.isnan(result.values[result.axes[0].labels.index("p15")]).all()
    assert any(caveat.startswith("NaN: with one token") for caveat in result.caveats)
