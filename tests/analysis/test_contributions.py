"""What experts give against what they get, and the orders pruning criteria put them in: worked by hand and by loops."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from analysis.expert import Expert
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.result import Reason
from analysis.saliency import CRITERIA, MEMBERS, rank_agreement

TOKENS = 40


def planted(world, indices, weights, norms, prompts=2, served=None, extremes=None):
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=4, top_k=indices.shape[-1])
    (batch,) = world.layers(shape=shape, lengths=(len(indices) // prompts,) * prompts)
    served = torch.ones_like(indices, dtype=torch.bool) if served is None else served
    gate_in, up_in = world.preactivations(batch.experts, batch.expert_input, indices, served)
    chosen = {"indices": indices, "weights": weights, "served": served, "gate_in": gate_in, "up_in": up_in}
    extremes = world.output_extremes(batch.experts, batch.expert_input, indices) if extremes is None else extremes
    batch = dataclasses.replace(batch, output_norms=norms, output_extremes=extremes, **chosen)
    return inputs_of(world, batch)


def inputs_of(world, batch):
    return Inputs(batch.shape, {name: world.state_of(name, [batch]) for name in ("contribution_sums", "output_sums")})


def random_side(world, seed=0, prompts=8, experts=4):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.rand(TOKENS * prompts, experts, generator=generator).topk(2).indices
    weights = torch.rand(TOKENS * prompts, 2, generator=generator)
    norms = torch.rand(TOKENS * prompts, 2, generator=generator) * (1 + indices)
    served = torch.rand(TOKENS * prompts, 2, generator=generator) < 0.9
    return planted(world, indices, weights, norms, prompts, served), (indices, weights, norms, served)


def test_contribution_counted_by_hand(world):
    """Expert 0 serves three of six pairs and gives 6 of 12; expert 1 one, giving 6; expert 2 two, giving nothing."""
    indices = torch.tensor([[0, 1], [0, 2], [0, 2]])
    weights = torch.tensor([[1.0, 0.5], [0.5, 0.5], [0.5, 0.5]])
    norms = torch.tensor([[2.0, 12], [4, 0], [4, 0]])
    result = evaluate(get("expert_contribution"), (planted(world, indices, weights, norms, prompts=1),), {})
    np.testing.assert_allclose(result.values, [[1, 3, 0, np.nan]], rtol=1e-9)
    assert result.facts["experts that give less than 0.1 of their load"] == 1
    assert result.facts["experts without tokens"] == 1
    assert np.isnan(result.null.low).tolist() == [[False, False, False, True]]
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


def test_shares_of_output_add_up_over_the_loads(world):
    side, (indices, _, _, served) = random_side(world)
    values = evaluate(get("expert_contribution"), (side,), {}).values[0]
    load = np.bincount(indices[served].numpy(), minlength=4) / int(served.sum())
    assert (values * load).sum() == pytest.approx(1, abs=1e-12)


def test_blind_deals_of_the_contributions_stay_in_the_band(world):
    """The band against contributions really dealt anew."""
    side, (indices, weights, norms, served) = random_side(world, seed=1)
    null = evaluate(get("expert_contribution"), (side,), {}).null
    given, who = (weights * norms)[served].double().numpy(), indices[served].numpy()
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(4000):
        rng.shuffle(given)
        drawn.append(np.bincount(who, given, minlength=4) / np.bincount(who, minlength=4) / given.mean())
    drawn = np.array(drawn)
    np.testing.assert_allclose((null.high - null.low)[0] / (2 * 1.959964), drawn.std(0), rtol=0.05)
    inside = ((null.low <= drawn) & (drawn <= null.high)).mean(0)
    np.testing.assert_allclose(inside, 0.95, atol=0.015)


def test_a_silent_expert_lies_below_the_band_and_a_loud_one_above(world):
    _, (indices, weights, norms, _) = random_side(world, seed=2)
    norms = torch.where(indices == 0, 0.01, torch.where(indices == 3, 20.0, 1.0))
    result = evaluate(get("expert_contribution"), (planted(world, indices, weights, norms, 8),), {})
    assert result.values[0, 0] < result.null.low[0, 0]
    assert result.values[0, 3] > result.null.high[0, 3]


@pytest.mark.parametrize("criterion", MEMBERS)
def test_each_named_member_is_its_formula_over_the_served_tokens(criterion, world):
    side, (indices, weights, norms, served) = random_side(world)
    a, b, c = MEMBERS[criterion]
    expected = []
    for expert in range(4):
        mine = (indices == expert) & served
        g, f = weights[mine].double(), norms[mine].double()
        expected.append(len(g) ** a * float((g**b * f**c).mean()))
    found = evaluate(get("expert_saliency"), (side,), {"criterion": criterion}).values[0]
    np.testing.assert_allclose(found, np.array(expected) / np.mean(expected), rtol=1e-9)


def test_ean_ca_is_the_size_of_the_mean_output_of_the_tokens_served(world):
    """By a loop over the experts themselves: their norms, planted elsewhere, have no part in it."""
    side, (indices, _, _, served) = random_side(world)
    (batch,) = world.layers(shape=side.shape, lengths=(TOKENS,) * 8)
    x, expected = batch.expert_input.double(), []
    for index, expert in enumerate(batch.experts):
        mine = ((indices == index) & served).any(-1)
        expected.append(float(expert.to(torch.float64)(x[mine]).mean(0).norm()))
    found = evaluate(get("expert_saliency"), (side,), {"criterion": "ean_ca"})
    np.testing.assert_allclose(found.values[0], np.array(expected) / np.mean(expected), rtol=1e-6)
    assert "agreement with reap" in found.facts and "agreement with ean_ca" not in found.facts


def test_the_largest_activation_is_any_components_of_any_token_served(world):
    """By a loop over the experts themselves; negative outliers are in one of the two criteria alone."""
    side, (indices, _, _, served) = random_side(world)
    (batch,) = world.layers(shape=side.shape, lengths=(TOKENS,) * 8)
    sizes, signed = [], []
    for index, expert in enumerate(batch.experts):
        outputs = expert(batch.expert_input[((indices == index) & served).any(-1)])
        sizes.append(float(outputs.abs().max()))
        signed.append(float(outputs.max()))
    assert sizes != signed
    for criterion, expected in (("max_activation", sizes), ("max_activation_signed", signed)):
        result = evaluate(get("expert_saliency"), (side,), {"criterion": criterion})
        assert isinstance(result.interval, Reason) and result.interval.reason.startswith("a maximum has none")
        found = result.values[0]
        np.testing.assert_allclose(found, np.array(expected) / np.mean(expected), rtol=1e-6)


def test_outputs_without_a_positive_component_have_a_signed_maximum_of_zero(world):
    indices = torch.tensor([[0, 1], [0, 1]])
    extremes = torch.tensor([[[-6.0, -1.0], [-1.0, 2.0]], [[-3.0, -2.0], [0.0, 1.0]]])
    side = planted(world, indices, torch.ones(2, 2), torch.ones(2, 2), extremes=extremes)
    found = {
        name: evaluate(get("expert_saliency"), (side,), {"criterion": name}).values[0]
        for name in ("max_activation", "max_activation_signed")
    }
    np.testing.assert_allclose(found["max_activation"], [6 / 4, 2 / 4, np.nan, np.nan])
    np.testing.assert_allclose(found["max_activation_signed"], [0, 2, np.nan, np.nan])


def test_outputs_that_cancel_have_a_norm_and_no_mean(world):
    """Expert 0 answers x and -x; expert 1 answers x and x, of size 5 each time."""
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=2, top_k=1)
    (batch,) = world.layers(shape=shape, lengths=(4,))
    one = torch.zeros(1, 5)
    one[0, :2] = torch.tensor([3.0, 4.0])
    x, indices = torch.cat([one, -one, one, one]), torch.tensor([[0], [0], [1], [1]])
    up = torch.eye(5)[:4]
    experts = [Expert(None, up, up.T, lambda _, u: u)] * 2
    served, norms = torch.ones_like(indices, dtype=torch.bool), x.norm(dim=-1, keepdim=True)
    seen = {"expert_input": x, "experts": experts, "gate_in": None, "up_in": (x @ up.T)[:, None], "served": served}
    extremes = torch.stack([x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)], -1)
    batch = dataclasses.replace(batch, indices=indices, output_norms=norms, output_extremes=extremes, **seen)
    asked = lambda by: evaluate(get("expert_saliency"), (inputs_of(world, batch),), {"criterion": by})  # noqa: E731
    np.testing.assert_allclose(asked("ean_mean").values, [[1, 1]], rtol=1e-12)
    np.testing.assert_allclose(asked("ean_ca").values, [[0, 2]], atol=1e-12)


def test_an_expert_without_tokens_has_no_mean_and_a_count_of_zero(world):
    indices = torch.tensor([[0, 1], [0, 2], [1, 2]] * 4)
    side = planted(world, indices, torch.ones(12, 2), torch.ones(12, 2))
    for criterion in CRITERIA:
        counts = criterion in MEMBERS and MEMBERS[criterion][0] == 1
        result = evaluate(get("expert_saliency"), (side,), {"criterion": criterion})
        assert result.values[0, 3] == 0 if counts else np.isnan(result.values[0, 3])
        assert any(caveat.startswith("NaN: ") for caveat in result.caveats) != counts


def test_rank_agreement_is_spearmans_with_ties_and_without_the_unknown():
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(0, 6, (2, 3, 20), generator=generator).double()
    for layer, found in enumerate(rank_agreement(one, other)):
        assert float(found) == pytest.approx(spearmanr(one[layer], other[layer]).statistic, abs=1e-12)
    one[0, :4] = torch.nan
    expected = spearmanr(one[0, 4:], other[0, 4:]).statistic
    assert float(rank_agreement(one, other)[0]) == pytest.approx(expected, abs=1e-12)
    assert rank_agreement(one[:1, :6], other[:1, :6]).isnan()
    assert rank_agreement(torch.ones(1, 5).double(), other[:1, :5]).isnan()


def test_halves_agree_where_experts_differ_and_not_where_they_do_not(world):
    shape = dataclasses.replace(world.SHAPE, layers=("0",), experts=16, top_k=2)
    agreements = []
    for size in (torch.arange(1, 17), torch.ones(16)):
        (batch,) = world.layers(shape=shape, lengths=(60,) * 24)
        generator = torch.Generator().manual_seed(3)
        norms = size[batch.indices] * (1 + 0.1 * torch.randn(batch.indices.shape, generator=generator))
        batch = dataclasses.replace(batch, output_norms=norms, served=torch.ones_like(batch.served))
        facts = evaluate(get("expert_saliency"), (inputs_of(world, batch),), {"criterion": "ean_mean"}).facts
        agreements.append(facts["agreement of two halves"])
        assert facts["agreement with msan"] > 0.9
        assert "agreement with ean_mean" not in facts
    assert agreements[0] == pytest.approx(1)
    assert abs(agreements[1]) < 0.6
