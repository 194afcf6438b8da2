"""Signatures freed of counting noise: right on average, the same where there is nothing to correct, never clipped."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from analysis.inference import evaluate
from analysis.measure import get
from analysis.signatures import corrected_cosines, directions, layer_cosines, squared_lengths

EXPERTS, TOP_K = 64, 8


def drawn(prompts, tokens, rates, generator):
    """Counts of prompts whose tokens pick k distinct experts by these rates (Gumbel top-k)."""
    noise = -torch.log(-torch.log(torch.rand(prompts, tokens, EXPERTS, generator=generator, dtype=torch.float64)))
    chosen = (rates.log() + noise).topk(TOP_K, -1).indices
    return torch.zeros(prompts, EXPERTS, dtype=torch.float64).index_put_(
        (torch.arange(prompts)[:, None], chosen.flatten(1)), torch.ones(()).double(), accumulate=True
    )


def pairwise(one, other, tokens):
    both = torch.stack([one, other], 1)
    length = torch.full((2,), tokens)
    squared = torch.stack([squared_lengths(pair[None], length, "noise_corrected")[0] for pair in both])
    return torch.stack(
        [corrected_cosines(p[None] / tokens, s[None], False)[0, 0, 1] for p, s in zip(both, squared, strict=True)]
    )


@pytest.mark.slow
def test_prompts_of_one_distribution_have_corrected_cosine_one_where_the_raw_one_grows_with_length():
    generator, raw = torch.Generator().manual_seed(0), []
    rates = torch.exp(torch.randn(EXPERTS, generator=generator, dtype=torch.float64))
    for tokens in (8, 16, 64):
        one, other = (drawn(400, tokens, rates, generator) for _ in range(2))
        raw.append(float(torch.nn.functional.cosine_similarity(one, other).mean()))
        # At 8 tokens the ratio of right averages is itself too large by a hundredth.
        assert float(pairwise(one, other, tokens).mean()) == pytest.approx(1, abs=0.02 if tokens == 8 else 0.01)
    assert raw == sorted(raw) and raw[0] < 0.8 and raw[2] < 0.97


@pytest.mark.slow
def test_different_distributions_keep_their_true_cosine_at_any_length():
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.exp(torch.randn(EXPERTS, generator=generator, dtype=torch.float64)) for _ in range(2))
    true = torch.nn.functional.cosine_similarity(
        *(drawn(1, 100_000, r, generator).sum(0) for r in (first, second)), dim=0
    )
    for tokens in (16, 64):
        one, other = drawn(400, tokens, first, generator), drawn(400, tokens, second, generator)
        assert float(pairwise(one, other, tokens).mean()) == pytest.approx(float(true), abs=0.015)
        assert float(torch.nn.functional.cosine_similarity(one, other).mean()) < float(true) - 0.02


def test_matched_length_is_the_average_over_all_choices_of_that_many_tokens():
    # Four tokens of three experts, two each; two of the four can be drawn in six ways.
    tokens = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=torch.float64)
    ways = [tokens[list(two)].sum(0) for two in itertools.combinations(range(4), 2)]
    by_hand = torch.stack([(n / 2).square().sum() for n in ways]).mean()
    counts, length = torch.stack([tokens.sum(0), ways[0]])[None], torch.tensor([4, 2])
    matched = squared_lengths(counts, length, "length_matched")[0]
    assert float(matched[0]) == pytest.approx(float(by_hand), abs=1e-12)
    assert float(matched[1]) == pytest.approx(float((ways[0] / 2).square().sum()), abs=1e-12)


@pytest.mark.parametrize("centred", [False, True])
def test_with_plain_lengths_nothing_is_corrected(centred):
    counts = torch.rand(3, 7, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    squared = squared_lengths(counts, torch.ones(7), "plain")
    expected = layer_cosines(directions(counts.transpose(0, 1), centred))
    torch.testing.assert_close(corrected_cosines(counts, squared, centred), expected, rtol=0, atol=1e-12)


def test_equal_lengths_are_already_matched(world):
    side = world.inputs_for(get("signature_effect"))
    plain, matched = (evaluate(get("signature_effect"), side, {"form": f}) for f in ("plain", "length_matched"))
    np.testing.assert_allclose(plain.values, matched.values, rtol=1e-10)
    assert "As if 12 tokens of each prompt had been drawn blindly, those of the shortest prompt." in matched.caveats


def lengths_told_apart(world):
    """Category a has short prompts, b long ones, all routed blindly."""
    batch = world.routes(lengths=(12, 120) * 8)
    return (world.Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])}),)


@pytest.mark.parametrize("form", ["length_matched", "noise_corrected"])
def test_length_alone_makes_no_likeness_once_it_is_corrected(form, world):
    side = lengths_told_apart(world)
    plain, corrected = (evaluate(get("signature_similarity"), side, {"form": f}) for f in ("plain", form))
    group = np.array(plain.axes[0].groups)
    short, long = (np.ix_(group == g, group == g) for g in "ab")
    off = ~np.eye(8, dtype=bool)
    gaps = [r.values[long][off].mean() - r.values[short][off].mean() for r in (plain, corrected)]
    assert gaps[0] > 0.1
    assert abs(gaps[1]) < 0.05


def test_corrected_cosines_exceed_one_and_are_not_clipped(world):
    result = evaluate(get("signature_similarity"), lengths_told_apart(world), {"form": "noise_corrected"})
    assert result.values.max() > 1.02
    assert any("never clipped" in caveat for caveat in result.caveats)
    np.testing.assert_array_equal(np.diag(result.values), 1)


def test_one_token_has_no_corrected_cosine(world):
    batch = world.routes(lengths=(20,) * 15 + (1,))
    side = (world.Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])}),)
    result = evaluate(get("signature_similarity"), side, {"form": "noise_corrected"})
    row = result.axes[0].labels.index("p15")
    assert np.isnan(result.values[row]).all() and int(np.isnan(result.values).all(-1).sum()) == 1
    assert any(caveat.startswith("NaN: with one token") for caveat in result.caveats)
    effect = evaluate(get("signature_effect"), side, {"form": "noise_corrected"})
    assert effect.facts["pairs"] == 15 * 14 / 2


def test_a_planted_effect_survives_correction_and_centring(world):
    batch = world.routes(lengths=(30,) * 16)
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    indices = torch.where(second[None, :, None], (batch.indices + 1) % 4 + 2, batch.indices % 4)
    indices[..., 1] = torch.where(indices[..., 1] == indices[..., 0], (indices[..., 1] + 1) % 6, indices[..., 1])
    batch = dataclasses.replace(batch, indices=indices)
    side = (world.Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])}),)
    for centred in (False, True):
        result = evaluate(get("signature_effect"), side, {"form": "noise_corrected", "centred": centred})
        assert result.facts["permutation p"] == 1 / 1000
        assert result.facts["layers with an effect (corrected)"] == 3
        assert result.facts["p of the strongest layer (corrected)"] == 1 / 1000
        assert result.facts["within"] == pytest.approx(1, abs=0.03)


@pytest.mark.slow
def test_layers_without_an_effect_are_not_counted(world):
    counted = [
        evaluate(get("signature_effect"), world.inputs_for(get("signature_effect"), seed), {}).facts[
            "layers with an effect (corrected)"
        ]
        for seed in range(20)
    ]
    assert sum(n > 0 for n in counted) <= 4
