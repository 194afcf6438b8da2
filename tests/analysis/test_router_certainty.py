"""What a router thinks of its tokens: worked by hand, against the same formula over tokens, and at its extremes."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.measure import get

SHAPE = dict(layers=("0",), experts=4, top_k=1, model=5)


def planted(world, logits, lengths=None, **shape):
    """One layer with these logits, its selections the k highest, its margins theirs."""
    shape = dataclasses.replace(world.SHAPE, **{**SHAPE, "experts": logits.shape[1], **shape})
    lengths = lengths or (len(logits),)
    (batch,) = world.layers(shape=shape, lengths=lengths)
    top = logits.topk(min(shape.top_k + 1, shape.experts))
    margins = (top.values[:, shape.top_k - 1] - top.values[:, -1]).double()
    indices, p = top.indices[:, : shape.top_k], logits.softmax(-1)
    return dataclasses.replace(
        batch, logits=logits, probabilities=p, indices=indices, weights=p.gather(1, indices).float(), margins=margins
    )


def asked(world, name, batch, **knobs):
    states = {"router_sums": world.state_of("router_sums", [batch])}
    if "prompt_counts" in get(name).statistics:
        routes = world.routes(shape=batch.shape, lengths=(1,) * len(batch.prompts))
        fields = {f: getattr(batch, f)[None] for f in ("indices", "weights", "served", "margins")}
        routes = dataclasses.replace(routes, keys=batch.keys, prompts=batch.prompts, **fields)
        states["prompt_counts"] = world.state_of("prompt_counts", [routes])
    return evaluate(get(name), (world.Inputs(batch.shape, states),), knobs)


def logits(tokens=300, experts=6, seed=0, scale=1.0):
    return scale * torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(
    ("scores", "entropy", "information"),
    [
        (torch.zeros(8, 4), math.log(4), 0),
        (1000 * torch.eye(4).repeat(2, 1), 0, math.log(4)),
        (1000 * torch.eye(4)[:1].repeat(8, 1), 0, 0),
        (torch.tensor([[9e3, 9e3, 0, 0], [0, 0, 9e3, 9e3]] * 4), math.log(2), math.log(2)),
    ],
    ids=["undecided", "decided and balanced", "always the same", "half and half"],
)
def test_undecided_is_told_from_balanced(scores, entropy, information, world):
    batch = planted(world, scores.double())
    assert asked(world, "probability_entropy", batch).values[0] == pytest.approx(entropy, abs=1e-12)
    assert asked(world, "routing_information", batch).values[0] == pytest.approx(information, abs=1e-12)


def test_information_is_entropy_of_the_mean_minus_mean_entropy(world):
    scores = logits(lengths := 300)
    p = scores.softmax(-1).numpy()
    entropy = lambda q: -(q * np.log(q)).sum(-1)  # noqa: E731
    result = asked(world, "routing_information", planted(world, scores, (lengths // 2,) * 2))
    assert result.values[0] == pytest.approx(entropy(p.mean(0)) - entropy(p).mean(), abs=1e-12)
    assert result.facts["mean entropy, over layers"] == pytest.approx(entropy(p).mean())


def test_z_loss_is_the_mean_squared_logsumexp(world):
    scores = logits()
    assert asked(world, "router_z_loss", planted(world, torch.zeros(8, 4).double())).values[0] == pytest.approx(
        math.log(4) ** 2
    )
    expected = float(torch.logsumexp(scores, -1).square().mean())
    assert asked(world, "router_z_loss", planted(world, scores)).values[0] == pytest.approx(expected, rel=1e-12)


def test_logits_that_shift_together_change_the_z_loss_alone(world):
    scores = logits()
    one, other = planted(world, scores), planted(world, scores + 3)
    assert asked(world, "router_z_loss", other).values[0] > asked(world, "router_z_loss", one).values[0] + 9
    for name in ("probability_entropy", "routing_information", "balance_loss", "routing_margin"):
        left, right = (asked(world, name, batch).values for batch in (one, other))
        np.testing.assert_allclose(left, right, atol=1e-12)


@pytest.mark.parametrize("name", ["probability_entropy", "routing_information", "router_z_loss", "balance_loss"])
def test_a_hidden_router_is_nan_with_a_reason(name, world):
    batch = planted(world, logits())
    batch = dataclasses.replace(batch, logits=batch.logits * math.nan, probabilities=batch.probabilities * math.nan)
    result = asked(world, name, batch)
    assert np.isnan(result.values).all()
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (8, 2), (16, 4)])
def test_balanced_routing_costs_one_and_k_for_transformers(experts, top_k, world):
    """Each expert in turn, with all the probability on the chosen ones: balanced, whatever the convention."""
    scores = torch.full((experts, experts), -1e3).double()
    for token in range(experts):
        scores[token, [(token + slot) % experts for slot in range(top_k)]] = 0
    batch = planted(world, scores, top_k=top_k)
    for convention, value in (("switch", 1), ("megatron", 1), ("transformers", top_k)):
        assert asked(world, "balance_loss", batch, convention=convention).values[0] == pytest.approx(value, abs=1e-12)


def test_the_same_k_experts_for_all_tokens_cost_the_most(world):
    scores = torch.tensor([[0.0, 0, -1e3, -1e3, -1e3, -1e3, -1e3, -1e3]]).repeat(20, 1).double()
    batch = planted(world, scores, top_k=2)
    found = {c: asked(world, "balance_loss", batch, convention=c).values[0] for c in ("megatron", "transformers")}
    assert found == {"megatron": pytest.approx(8 / 2), "transformers": pytest.approx(8)}
    # The likeliest of two equals is the earlier slot: one expert has all of f, and half of P.
    assert asked(world, "balance_loss", batch, convention="switch").values[0] == pytest.approx(8 * 0.5)


def test_the_conventions_are_those_of_the_code_they_are_named_after(world):
    scores, top_k = logits(experts=6), 2
    p = scores.softmax(-1)
    mask = torch.nn.functional.one_hot(p.topk(top_k).indices, 6).double()
    expected = {
        # transformers.models.mixtral.modeling_mixtral.load_balancing_loss_func, for one layer.
        "transformers": float((mask.mean(0) * p.mean(0)[None]).sum() * 6),
        # Megatron-LM switch_load_balancing_loss_func without its coefficient.
        "megatron": float((p.sum(0) * mask.sum((0, 1))).sum() * 6 / (300 * 300 * top_k)),
        "switch": float(6 * (torch.bincount(p.argmax(-1), minlength=6).double() / 300 * p.mean(0)).sum()),
    }
    batch = planted(world, scores, top_k=top_k)
    for convention, value in expected.items():
        found = asked(world, "balance_loss", batch, convention=convention).values[0]
        assert found == pytest.approx(value, rel=1e-9), convention


def test_the_sequence_loss_counted_by_hand(world):
    """f = (1/2, 1/2, 0, 0) gives 4 (0.25 + 0.15) = 1.6; f = (0, 0, 1/2, 1/2) gives 4 (0.1 + 0.35) = 1.8."""
    p = torch.tensor([[0.5, 0.3, 0.2, 0], [0.5, 0.3, 0.2, 0], [0, 0.1, 0.2, 0.7]], dtype=torch.float64)
    batch = planted(world, p.clamp(min=1e-300).log(), lengths=(2, 1), top_k=2)
    for indices in (batch.indices, 3 - batch.indices):  # what a selection bias chose is not asked
        found = asked(world, "balance_loss", dataclasses.replace(batch, indices=indices), convention="sequence")
        assert found.values[0] == pytest.approx((1.6 + 1.8) / 2, abs=1e-12)
    pooled = 4 * np.dot([2 / 6, 2 / 6, 1 / 6, 1 / 6], p.mean(0).numpy())
    assert found.facts["all tokens as one sequence"] == pytest.approx(pooled, abs=1e-12)
    assert found.facts["sequences"] == 2


def test_the_sequence_loss_is_that_of_deepseeks_code_on_sequences_of_one_length(world):
    scores, top_k, shape = logits(), 2, (10, 30)
    s = scores.softmax(-1).view(*shape, 6)
    chosen = s.topk(top_k).indices.view(shape[0], -1)
    # DeepSeek-V2's MoEGate with seq_aux, without its coefficient.
    load = torch.zeros(shape[0], 6).double().scatter_add_(1, chosen, torch.ones(chosen.shape).double())
    expected = float((load / (shape[1] * top_k / 6) * s.mean(1)).sum(1).mean())
    batch = planted(world, scores, lengths=(shape[1],) * shape[0], top_k=top_k)
    assert asked(world, "balance_loss", batch, convention="sequence").values[0] == pytest.approx(expected, rel=1e-12)


def test_experts_in_step_with_their_prompts_are_balanced_in_all_and_unbalanced_in_each(world):
    one = torch.tensor([[0.0, 0, -1e3, -1e3]]).repeat(20, 1).double()
    batch = planted(world, torch.cat([one, one.flip(-1)]), lengths=(20, 20), top_k=2)
    assert asked(world, "balance_loss", batch).values[0] == pytest.approx(1)
    assert asked(world, "balance_loss", batch, convention="sequence").values[0] == pytest.approx(2)
    taste = 2 * logits(tokens=12, seed=1).repeat_interleave(25, 0)
    batch = planted(world, logits() + taste, lengths=(25,) * 12, top_k=2)
    found = {name: asked(world, "balance_loss", batch, convention=name).values[0] for name in ("sequence", "megatron")}
    assert found["sequence"] > 1.2 * found["megatron"]


def test_scores_that_tie_share_the_places_that_are_left(world):
    batch = planted(world, torch.tensor([[1.0, 0, 0, -1]]).double(), top_k=2)
    assert world.state_of("router_sums", [batch])["prompt_top"].tolist() == [[[1, 0.5, 0.5, 0]]]


@pytest.mark.slow
def test_nameless_scores_give_the_sequence_loss_that_the_null_says(world):
    """Against scores really handed to the experts in random order: mean, spread and coverage."""
    lengths, k, drawn = (3, 10, 40, 60), 2, []
    p = logits(113, scale=1.5).softmax(-1)
    generator = torch.Generator().manual_seed(2)
    for _ in range(4000):
        named = p.gather(1, torch.rand(p.shape, generator=generator).argsort(1)).split(lengths)
        top = [torch.zeros_like(each).scatter_(1, each.topk(k).indices, 1).mean(0) / k for each in named]
        drawn.append(np.mean([6 * float(f @ each.mean(0)) for f, each in zip(top, named, strict=True)]))
    null = asked(world, "balance_loss", planted(world, p.log(), lengths, top_k=k), convention="sequence").null
    low, high = null.low.item(), null.high.item()
    error = np.std(drawn) / math.sqrt(4000)
    assert null.mean.item() == pytest.approx(np.mean(drawn), abs=4 * error)
    assert (high - low) / (2 * norm.ppf(0.975)) == pytest.approx(np.std(drawn), rel=0.05)
    assert np.mean([low <= value <= high for value in drawn]) == pytest.approx(0.95, abs=0.015)


def test_opposite_imbalances_cancel_when_layers_are_pooled(world):
    scores = torch.full((20, 4), -1e3).double()
    one, other = scores.clone(), scores.clone()
    one[:, :2], other[:, 2:] = 0, 0
    shape = dict(layers=("0", "1"), top_k=2)
    batches = [dataclasses.replace(planted(world, s, layers=("0",), top_k=2)) for s in (one, other)]
    whole = dataclasses.replace(batches[0].shape, layers=shape["layers"])
    batches = [dataclasses.replace(b, shape=whole, layer=i) for i, b in enumerate(batches)]
    routes = world.routes(shape=whole, lengths=(20,))
    routes = dataclasses.replace(routes, indices=torch.stack([b.indices for b in batches]))
    states = {
        "router_sums": world.state_of("router_sums", batches),
        "prompt_counts": world.state_of("prompt_counts", [routes]),
    }
    result = evaluate(get("balance_loss"), (world.Inputs(whole, states),), {})
    np.testing.assert_allclose(result.values, [2, 2], atol=1e-12)
    assert result.facts["all layers pooled"] == pytest.approx(1)


def test_selections_that_follow_the_probabilities_cost_more_than_blind_ones(world):
    result = asked(world, "balance_loss", planted(world, logits() + torch.arange(6) / 3, top_k=2))
    assert result.values[0] > result.null.high[0] > 1


def test_mean_margin_is_exact_and_the_median_within_its_bin(world):
    batch = planted(world, logits(2000), top_k=2)
    margins = batch.margins
    assert asked(world, "routing_margin", batch).values[0] == pytest.approx(float(margins.mean()), rel=1e-12)
    for quantile in (0.1, 0.5, 0.9):
        found = asked(world, "routing_margin", batch, show="quantile", quantile=quantile).values[0]
        assert found == pytest.approx(float(margins.quantile(quantile)), rel=0.05)


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
def test_predicted_flips_are_the_normal_chance_at_the_boundary(noise, world):
    batch = planted(world, logits(4000), top_k=2)
    expected = norm.cdf(-batch.margins.numpy() / (noise * math.sqrt(2))).mean()
    found = asked(world, "routing_margin", batch, show="flips", noise=noise)
    assert found.values[0] == pytest.approx(expected, rel=0.02)
    assert found.facts[f"predicted flips at noise {noise:g}"] == found.values[0]


def test_predicted_flips_are_those_of_noisy_scores_and_a_little_too_few(world):
    scores = logits(20_000, seed=5)
    noise = 0.05 * torch.randn(20_000, 6, generator=torch.Generator().manual_seed(1)).double()
    before, after = (x.topk(2).indices.sort(-1).values for x in (scores, scores + noise))
    flipped = float((before != after).any(-1).double().mean())
    found = asked(world, "routing_margin", planted(world, scores, top_k=2), show="flips", noise=0.05).values[0]
    assert found == pytest.approx(flipped, rel=0.08)


def test_no_margin_at_all_flips_half_and_margins_below_zero_are_counted(world):
    batch = planted(world, logits(40), top_k=2)
    batch = dataclasses.replace(batch, margins=torch.cat([torch.zeros(30), -torch.ones(10)]).double())
    result = asked(world, "routing_margin", batch, show="flips")
    assert result.values[0] == pytest.approx(0.5)
    assert result.facts["margins below 0"] == 10
    assert asked(world, "routing_margin", batch, show="quantile").values[0] < 1e-6


def test_margins_out_of_range_are_refused(world):
    for knobs in ({"quantile": 0.0}, {"quantile": 1.0}, {"noise": 0.0}):
        with pytest.raises(BadKnob, match=rf"{next(iter(knobs))!r} is \d\.0; it takes a number, above 0 and below 1"):
            asked(world, "routing_margin", planted(world, logits()), **knobs)


def test_displaced_selections_are_those_below_the_kth_best_and_ties_are_not():
    from analysis.statistics.router_sums import _against_rank

    p = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 0.3, 0.1], [0.4, 0.3, 0.2, 0.1]]).double()
    bar = p.topk(2).values[:, -1:]
    first, displaced = _against_rank(p, torch.tensor([[0, 1], [0, 3], [1, 2], [4, 5]]), bar)
    assert displaced.tolist() == [0, 1, 0, 0]
    assert first.tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
