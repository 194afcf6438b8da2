"""The task classifier: the fit against scikit-learn's, the published folds, planted categories and its controls."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from analysis.classifier import coordinates, fit, fold_accuracies, fold_of_prompt
from analysis.errors import BadKnob, TooFew
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.measures.signature_classifier import _of_random_routers
from analysis.result import Reason
from analysis.slots import Prompts, text_digest

MEASURE = get("signature_classifier")


def side_of(batch, world):
    states = {name: world.state_of(name, [batch]) for name in ("prompt_counts", "token_routes")}
    return (Inputs(batch.shape, states),)


def planted(world, lengths=(20,) * 16):
    """Category a uses experts 0 to 2 only, category b 3 to 5."""
    batch = world.routes(lengths=lengths)
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    indices = batch.indices % 3
    indices[..., 1] = (indices[..., 0] + 1) % 3
    return dataclasses.replace(batch, indices=torch.where(second[None, :, None], indices + 3, indices))


def test_the_published_folds_have_the_published_mean_and_population_spread():
    folds = np.array([16, 16, 14, 14, 14]) / 16
    assert folds.mean() == pytest.approx(0.925)
    assert torch.tensor(folds).std(correction=0).item() == pytest.approx(0.0612, abs=5e-5)
    assert folds.std(ddof=1) == pytest.approx(0.0685, abs=5e-5)


@pytest.mark.parametrize(("width", "categories"), [(3, 4), (40, 4), (200, 4), (30, 2)])
def test_fits_are_those_of_scikit_learn_with_its_scaler_inside_the_fold(width, categories):
    generator = torch.Generator().manual_seed(width)
    labels = torch.arange(40) % categories
    features = torch.rand(40, width, generator=generator).double() + labels[:, None] * torch.rand(width) * 0.1
    fold = fold_of_prompt(labels, 5, 0)
    train = fold[None] != torch.arange(5)[:, None]
    scores = fit(coordinates(features[None], train), labels, train, 1.0)
    for n, inside in enumerate(train):
        scaler = StandardScaler().fit(features[inside])
        # With two categories scikit-learn penalises their difference, we both weights: C is half as strong.
        theirs = LogisticRegression(C=1.0 if categories > 2 else 2.0, max_iter=10_000, tol=1e-10)
        theirs.fit(scaler.transform(features[inside]), labels[inside])
        expected = theirs.predict_proba(scaler.transform(features))
        np.testing.assert_allclose(scores[n].softmax(-1), expected, atol=1e-5)


def test_folds_hold_their_share_of_every_category():
    labels = torch.arange(80) % 4
    fold = fold_of_prompt(labels, 5, 3)
    assert torch.bincount(fold * 4 + labels).tolist() == [4] * 20
    assert not torch.equal(fold, fold_of_prompt(labels, 5, 4))


def test_a_held_out_prompt_never_teaches_its_own_fold():
    """One feature that singles out each prompt: perfect on what was seen, worthless on what was not."""
    labels = torch.arange(24) % 2
    fold = fold_of_prompt(labels, 4, 0)
    accuracy = fold_accuracies(torch.eye(24).double(), labels, fold, 1e3)
    assert float(accuracy.mean()) <= 0.5
    train = fold[None] != torch.arange(4)[:, None]
    right = fit(coordinates(torch.eye(24).double()[None], train), labels, train, 1e3).argmax(-1) == labels
    assert bool(right[train].all())


def test_orders_are_the_same_as_moving_the_features():
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.rand(20, 6, generator=generator).double(), torch.arange(20) % 2
    fold, orders = fold_of_prompt(labels, 5, 0), torch.rand(3, 20, generator=generator).argsort(-1)
    together = fold_accuracies(features, labels, fold, 1.0, orders)
    one_by_one = [fold_accuracies(features[order], labels, fold, 1.0)[0] for order in orders]
    torch.testing.assert_close(together, torch.stack(one_by_one), rtol=0, atol=0)


def test_features_as_they_are_are_those_that_scikit_learn_fits_without_a_scaler():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    features = (
        0.1 * torch.rand(30, 8, generator=generator).double() + torch.eye(3).double()[labels].repeat(1, 3)[:, :8] / 20
    )
    fold = fold_of_prompt(labels, 3, 0)
    found = fold_accuracies(features, labels, fold, 20.0, scaled=False)[0]
    for n in range(3):
        inside = (fold != n).numpy()
        theirs = LogisticRegression(C=20.0, max_iter=10_000, tol=1e-10).fit(features[inside], labels[inside])
        assert float(found[n]) == pytest.approx(theirs.score(features[~inside], labels[~inside]))
    assert not torch.equal(found, fold_accuracies(features, labels, fold, 20.0)[0])


def test_selections_per_token_are_shares_under_a_penalty_k_squared_times_as_weak(world):
    side = side_of(world.routes(3, lengths=(10, 30) * 8), world)

    def told(features, penalty):
        result = evaluate(dataclasses.replace(MEASURE, null=None), side, {"features": features, "penalty": penalty})
        return float(result.values), result.facts["from a random router of its token ids"]

    k = world.SHAPE.top_k
    assert told("per_token", 3.0) == told("shares", 3.0 * k**2)
    assert told("per_token", 3.0) != told("shares", 3.0)
    assert told("standardised", 3.0) != told("per_token", 3.0)


def test_categories_with_experts_of_their_own_are_told_apart_every_time(world):
    result = evaluate(MEASURE, side_of(planted(world), world), {})
    assert float(result.values) == 1
    assert result.facts["sd over folds"] == 0
    assert result.facts["permutation p"] == 1 / 100
    assert result.facts["always the most frequent category"] == 0.5
    # Lengths and words were the same for both.
    assert result.facts["from the prompt's length alone"] <= 0.6
    assert result.facts["from its token ids alone"] <= 0.8
    assert result.facts["from a random router of its token ids"] <= 0.8
    assert result.interval == Reason(MEASURE.interval_reason)


def test_blind_routing_tells_nothing(world):
    result = evaluate(MEASURE, side_of(world.routes(2, lengths=(30,) * 16), world), {})
    assert result.null.low <= result.values <= result.null.high
    assert result.facts["permutation p"] > 0.05


def test_length_and_words_are_found_out_as_what_tells_the_categories(world):
    batch = world.routes(3, lengths=(10, 30) * 8)
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    keys = dataclasses.replace(batch.keys, token=batch.keys.token + 100 * second)
    result = evaluate(MEASURE, side_of(dataclasses.replace(batch, keys=keys), world), {})
    assert result.facts["from the prompt's length alone"] == 1
    assert result.facts["from its token ids alone"] == 1
    assert result.facts["from a random router of its token ids"] >= 0.95


def test_a_random_router_sends_an_id_to_the_same_k_experts_wherever_it_stands(world):
    bags = torch.tensor([[3.0, 0, 1], [3, 0, 1], [0, 5, 0]]).double() / torch.tensor([[4.0], [4], [5]])
    first, second, *_ = _of_random_routers(bags, world.SHAPE, 0)
    layers, experts, k = len(world.SHAPE.layers), world.SHAPE.experts, world.SHAPE.top_k
    for drawn in (first, second):
        drawn = drawn.unflatten(-1, (layers, experts))
        torch.testing.assert_close(drawn.sum(-1), torch.ones(3, layers).double())
        assert torch.equal(drawn[0], drawn[1]) and (drawn[2] > 0).sum(-1).tolist() == [k] * layers
        assert not torch.equal(drawn[:, 0], drawn[:, 1])
    assert not torch.equal(first, second)


def test_a_fully_soft_router_has_no_random_one_beside_it(world):
    soft = dataclasses.replace(world.SHAPE, top_k=6)
    result = evaluate(MEASURE, side_of(world.routes(shape=soft), world), {})
    assert "from its token ids alone" in result.facts and "from a random router of its token ids" not in result.facts


def test_a_copy_of_a_text_is_used_once(world):
    batch = planted(world)
    digests = list(batch.prompts.digests)
    digests[2] = digests[0]
    prompts = Prompts(batch.prompts.ids, tuple(digests), batch.prompts.categories)
    result = evaluate(MEASURE, side_of(dataclasses.replace(batch, prompts=prompts), world), {})
    assert result.facts["prompts"] == 15


def test_fewer_prompts_than_folds_use_fewer_folds_and_say_so(world):
    result = evaluate(MEASURE, side_of(planted(world, (20,) * 6), world), {})
    assert result.facts["folds"] == 3
    assert "3 folds and not 5: the smallest category has 3 different prompts." in result.caveats


def test_prompts_without_tokens_are_left_out(world):
    result = evaluate(MEASURE, side_of(planted(world, (20,) * 15 + (0,)), world), {})
    assert result.facts["prompts"] == 15 and not np.isnan(result.values)


def test_one_category_or_one_text_each_is_refused(world):
    batch = planted(world)
    same = dataclasses.replace(batch.prompts, categories=("a",) * 16)
    with pytest.raises(TooFew, match="two categories with two prompts each"):
        evaluate(MEASURE, side_of(dataclasses.replace(batch, prompts=same), world), {})
    digest = text_digest("one text")
    alike = dataclasses.replace(batch.prompts, digests=(digest,) * 16)
    with pytest.raises(TooFew, match="1 different prompts"):
        evaluate(MEASURE, side_of(dataclasses.replace(batch, prompts=alike), world), {})


@pytest.mark.parametrize("knobs", [{"folds": 1}, {"penalty": 0.0}, {"seed": -1}])
def test_senseless_settings_are_refused(knobs, world):
    with pytest.raises(BadKnob, match=f"{next(iter(knobs))!r} is "):
        evaluate(MEASURE, side_of(planted(world), world), knobs)
