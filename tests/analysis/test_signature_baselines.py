"""The floors under the signature effect: closed forms against all permutations, draws and planted routes."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob, TooFew
from analysis.inference import evaluate
from analysis.measure import get
from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State

BASELINES = get("signature_baselines")


def state_of(selected, tokens, top_k):
    """Counts as given, prompts in two categories by turns."""
    prompts, layers, experts = selected.shape
    ids = tuple(f"p{i:03d}" for i in range(prompts))
    shape = Shape(tuple(map(str, range(layers))), experts, top_k, 4, 4)
    labels = tuple("ab"[i % 2] for i in range(prompts))
    arrays = {"selected": selected, "served": selected, "weights": selected.double() / top_k, "tokens": tokens}
    return State("prompt_counts", shape, Prompts(ids, tuple(map(text_digest, ids)), labels), arrays)


def asked(state, **knobs):
    return BASELINES.function(state, **BASELINES.settle(knobs))


def column(values, name):
    return values.values[:, values.axes[1].labels.index(name)].numpy()


def blind(tokens, world, seed=0, experts=6, top_k=2):
    shape = dataclasses.replace(world.SHAPE, experts=experts, top_k=top_k)
    return world.state_of("prompt_counts", [world.routes(seed, shape, tokens)])


def test_renamed_experts_in_closed_form_equal_the_mean_over_all_720_namings():
    a, b = torch.tensor([7, 0, 3, 1, 1, 0]), torch.tensor([2, 2, 5, 0, 1, 2])
    state = state_of(torch.stack([a, b, a, b])[:, None], torch.tensor([6] * 4), 2)
    pairs = [(a, b)] * 4 + [(a, a), (b, b)]
    namings = torch.tensor(list(itertools.permutations(range(6))))
    every = [
        torch.nn.functional.cosine_similarity(x.double()[None], y.double()[namings], dim=-1).mean() for x, y in pairs
    ]
    # The sums of a and b are 12: both prompts chose 2 of 6 experts for 6 tokens.
    assert column(asked(state), "permuted")[0] == pytest.approx(float(torch.stack(every).mean()), abs=1e-12)


@pytest.mark.parametrize(
    ("knobs", "name", "tolerance"),
    [
        ({"permuted": "experts"}, "permuted", 0.004),
        ({"permuted": "slots"}, "permuted", 0.006),
        ({"balanced": "distinct"}, "balanced", 0.006),
        ({"balanced": "independent"}, "balanced", 0.006),
    ],
)
def test_draws_agree_with_the_closed_forms(knobs, name, tolerance, world):
    state = blind((24, 60) * 8, world, experts=12, top_k=3)
    selected = state["selected"].clone()
    selected[:, :, 0] += 5
    skewed = dataclasses.replace(state, arrays={**state.arrays, "selected": selected})
    closed, drawn = (column(asked(skewed, method=m, **knobs), name) for m in ("closed_form", "simulated"))
    np.testing.assert_allclose(drawn, closed, atol=tolerance)


@pytest.mark.parametrize(("tokens", "floor"), [(8, 0.533), (16, 0.696), (32, 0.821), (128, 0.948)])
def test_the_load_balanced_floor_has_its_published_size(tokens, floor):
    selected = torch.ones(4, 1, 64, dtype=torch.int64)
    state = state_of(selected, torch.full((4,), tokens), 8)
    assert column(asked(state), "balanced")[0] == pytest.approx(floor, abs=6e-4)
    independent = column(asked(state, balanced="independent"), "balanced")[0]
    assert independent == pytest.approx(1 / (1 + 63 / (8 * tokens)), abs=1e-12)


def test_nameless_experts_do_not_care_about_load_and_dealt_slots_do():
    """Every prompt uses expert 0 alone: dealing slots anew changes nothing, renaming leaves chance 1/E."""
    selected = torch.zeros(6, 2, 5, dtype=torch.int64)
    selected[..., 0] = 9
    state = state_of(selected, torch.full((6,), 9), 1)
    np.testing.assert_allclose(column(asked(state), "permuted"), 1 / 5, rtol=1e-12)
    np.testing.assert_allclose(column(asked(state, permuted="slots"), "permuted"), 1, rtol=1e-12)
    np.testing.assert_allclose(column(asked(state), "within"), 1, rtol=1e-12)
    np.testing.assert_allclose(column(asked(state), "across"), 1, rtol=1e-12)


def test_disjoint_categories_share_nothing_across_and_everything_within():
    selected = torch.zeros(6, 1, 4, dtype=torch.int64)
    selected[::2, :, :2], selected[1::2, :, 2:] = 5, 5
    values = asked(state_of(selected, torch.full((6,), 5), 2))
    assert column(values, "within")[0] == pytest.approx(1, abs=1e-12)
    assert column(values, "across")[0] == 0
    assert column(values, "permuted")[0] == pytest.approx(0.5, abs=1e-12)
    assert values.facts["order"] == "within > balanced > permuted > across"


def test_blind_routing_lies_on_its_own_floor(world):
    values = asked(blind((40,) * 32, world))
    for name in ("within", "across", "permuted"):
        np.testing.assert_allclose(column(values, name), column(values, "balanced"), atol=0.012)


def test_the_paper_s_order_needs_prompts_of_twelve_to_thirty_eight_tokens():
    """The published across .6225 and within .8435 enclose the blind floor of 64 experts, 8 a token, only there."""
    inside = []
    for tokens in range(2, 80):
        state = state_of(torch.ones(4, 1, 64, dtype=torch.int64), torch.full((4,), tokens), 8)
        if 0.6225 < column(asked(state), "balanced")[0] < 0.8435:
            inside.append(tokens)
    assert (inside[0], inside[-1]) == (12, 37)


def test_another_seed_draws_other_worlds_and_a_negative_one_is_refused(world):
    state = blind((20,) * 8, world)
    first, again, other = (asked(state, method="simulated", seed=s).values for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    with pytest.raises(BadKnob, match="'seed' is -1; it takes a whole number, 0 to 4,294,967,295"):
        asked(state, seed=-1)


def test_weights_have_no_blind_counterpart_and_say_so(world):
    state = blind((20,) * 8, world)
    values = asked(state, weighting="weight", permuted="slots")
    assert np.isnan(column(values, "balanced")).all() and np.isnan(column(values, "permuted")).all()
    assert not np.isnan(column(values, "within")).any()
    assert any(caveat.startswith("NaN: combine weights") for caveat in values.caveats)
    assert values.facts["order"] in ("within > across", "across > within")


def test_drawn_answers_do_not_depend_on_the_experts_names(world):
    batch = world.routes(lengths=(20,) * 8)
    renamed = world.permute_experts(batch, torch.tensor([3, 0, 5, 1, 2, 4]))
    one, other = (asked(world.state_of("prompt_counts", [b]), method="simulated").values for b in (batch, renamed))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_each_mean_says_of_how_many_pairs_it_is_layer_by_layer(world):
    """Prompt 0 has tokens, none of which chose an expert in layer 1: three prompts of either category, two of one."""
    selected = torch.ones(6, 2, 4, dtype=torch.int64)
    selected[0, 1] = 0
    facts = asked(state_of(selected, torch.full((6,), 4), 1)).facts
    assert facts["pairs within in each layer"] == "6, 4" and facts["pairs within"] == 10
    assert facts["pairs across in each layer"] == "9, 6" and facts["pairs across"] == 15
    assert facts["pairs balanced, in every layer"] == 15
    weighed = asked(state_of(selected, torch.full((6,), 4), 1), weighting="weight").facts
    assert "pairs balanced, in every layer" not in weighed and weighed["pairs within"] == 10


def test_one_category_is_refused(world):
    state = blind((20,) * 8, world)
    with pytest.raises(TooFew, match="two categories"):
        asked(state.labelled({key: "one" for key in state.prompts.keys}))


def test_an_empty_prompt_is_left_out(world):
    values = evaluate(BASELINES, (world.Inputs(world.SHAPE, {"prompt_counts": blind((20,) * 15 + (0,), world)}),), {})
    assert not np.isnan(values.values).any()
