"""The p of subspace drift: sides exchanged by blocks of prompts, where nothing moved and where something did."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.exchange import moved
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.slots import BLOCKS

SPECTRUM = 2.0 ** -torch.arange(5)
LENGTHS = (10,) * 24


def sides(world, seed, planted=None, noise=0.5):
    """Two views of the same tokens, alike within a prompt; `planted` turns b's inputs in the layer of that number."""
    generator = torch.Generator().manual_seed(seed)
    batches, views = world.layers(seed, lengths=LENGTHS), [[], []]
    prompt = batches[0].keys.prompt
    for layer, batch in enumerate(batches):
        size = batch.expert_input.shape
        for side, view in enumerate(views):
            of_prompt, of_token = (torch.randn(count, size[1], generator=generator) for count in (24, size[0]))
            x = (batch.expert_input + noise * (of_prompt[prompt] + of_token)) * SPECTRUM
            x = x.roll(2, -1) if planted == layer and side else x
            view.append(dataclasses.replace(batch, expert_input=x))
    routes = world.state_of("token_routes", [world.routes(seed, lengths=LENGTHS)])
    states = [{"routed_rows": world.state_of("routed_rows", view), "token_routes": routes} for view in views]
    return tuple(Inputs(world.SHAPE, state) for state in states)


def asked(pair, seed=0):
    return moved(pair, torch.arange(6).expand(3, -1), 2, "plain", torch.Generator().manual_seed(seed))


def facts(world, pair, seed=0):
    return asked(pair, seed)[0]


@pytest.mark.slow
def test_where_nothing_moved_the_p_has_its_nominal_size(world):
    p = np.array([facts(world, sides(world, seed), seed)["sign-flip p"] for seed in range(40)])
    # Binomial(40, 0.05) is at most 6 in 99.7 %; the mean of 40 uniform numbers is 0.5 +- 3 x 0.046.
    assert (p <= 0.05).sum() <= 6
    assert abs(p.mean() - 0.5) < 0.137


def test_what_moved_is_found_in_its_layer(world):
    told, p = asked(sides(world, 0, planted=1))
    assert (p <= 0.05)[:, 0].tolist() == [False, True, False]
    # Seven blocks may change sides: 127 ways, all of them tried.
    assert told["exchanges of blocks of prompts"] == 2 ** (BLOCKS - 1) - 1
    assert told["sign-flip p"] == 1 / 128
    assert told["layers that moved beyond exchange (max-statistic)"] == "1 of 3"


def test_a_copy_has_a_p_of_one_and_the_sides_may_change_places(world):
    a, b = sides(world, 0)
    assert facts(world, (a, a))["sign-flip p"] == 1
    assert facts(world, (a, b)) == facts(world, (b, a))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("weighting", ["scaled", "weighted", "plain"])
def test_the_sides_as_they_are_lie_as_far_apart_as_the_measure_says(n, weighting, world, monkeypatch):
    seen = []
    monkeypatch.setattr("analysis.exchange.beyond_chance", lambda own, drawn: seen.append(own) or torch.ones_like(own))
    pair, knobs = sides(world, 3), {"n": n, "weighting": weighting, "matching": "identity"}
    values = evaluate(dataclasses.replace(get("subspace_drift"), interval_reason="not asked"), pair, knobs).values
    np.testing.assert_allclose(seen[0], np.nanmean(values, -1), rtol=1e-9)
