"""The selection bias: its spread, how hard it is pinned, and the choices it changes, counted by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.measure import Inputs, get

MEASURE = get("selection_bias")


def asked(world, bias, scores=None, **knobs):
    """One layer whose router ranks sigmoid scores plus this bias, and weighs by the scores alone."""
    shape = dataclasses.replace(world.SHAPE, layers=("7",), experts=len(bias), top_k=2)
    if scores is None:
        scores = torch.rand(60, len(bias), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (batch,) = world.layers(shape=shape, lengths=(len(scores) // 2,) * 2)
    indices = (scores + bias.nan_to_num()).topk(2).indices
    batch = dataclasses.replace(batch, indices=indices, probabilities=scores / scores.sum(-1, keepdim=True))
    states = {"router_sums": world.state_of("router_sums", [batch])}
    return evaluate(MEASURE, (Inputs(shape, states, {"router_bias": bias[None]}),), knobs)


def test_flips_are_the_selections_that_the_scores_alone_would_not_make(world):
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.1], [0.9, 0.2, 0.8, 0.1], [0.3, 0.9, 0.1, 0.8], [0.5, 0.6, 0.7, 0.0]])
    bias = torch.tensor([0, 0, 0.15, 0])
    # Token 0: expert 2 (0.85) beats expert 1 (0.8). No other choice changes: 1 of 8.
    assert asked(world, bias.double(), scores.double()).values[0] == pytest.approx(1 / 8)


def test_equal_biases_change_nothing(world):
    assert asked(world, torch.full((6,), 0.3).double()).values[0] == 0
    assert asked(world, torch.full((6,), 0.3).double(), show="spread").values[0] == 0


def test_a_bias_above_all_scores_decides_every_choice(world):
    bias = torch.tensor([0, 0, 0, 0, 5, 5]).double()
    scores = torch.rand(60, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = scores.topk(2).indices
    kept = ((both == 4) | (both == 5)).sum()
    assert asked(world, bias, scores).values[0] == pytest.approx(1 - float(kept) / 120)


def test_spread_and_deviation_are_those_of_numpy(world):
    bias = torch.tensor([0.02, -0.03, 0.01, 0.0]).double()
    assert asked(world, bias, show="spread").values[0] == pytest.approx(0.05)
    assert asked(world, bias, show="sd").values[0] == pytest.approx(np.std(bias.numpy(), ddof=1))


def test_the_pinned_fraction_is_one_where_the_sign_never_flipped(world):
    """A thousand updates of 0.001: the first expert was pushed up every time, the last hovered."""
    bias = torch.tensor([1.0, -0.5, 0.25, 0.001]).double()
    facts = asked(world, bias, updates=1000).facts
    assert facts["pinned fraction, largest"] == pytest.approx(1)
    assert facts["pinned fraction, mean"] == pytest.approx(1.751 / 4)
    assert "pinned fraction, mean" not in asked(world, bias).facts


def test_a_bias_says_how_many_updates_it_takes_and_objects_to_fewer(world):
    """Float32 sums of 0.001 end a little beside a whole number of them."""
    up = torch.zeros(()).float()
    for _ in range(250):
        up = up + 0.001
    bias = torch.stack([up, -up / 2, torch.zeros(()), torch.zeros(())]).double()
    assert asked(world, bias).facts["fewest updates of this rate"] == 250
    assert asked(world, bias, rate=0.01).facts["fewest updates of this rate"] == 25
    assert not any("cannot make this bias" in c for c in asked(world, bias, updates=250).caveats)
    said = "240 updates of 0.001 cannot make this bias, which takes 250: one of the two is not right."
    assert said in asked(world, bias, updates=240).caveats


@pytest.mark.parametrize("show", ["flips", "spread", "sd"])
def test_a_router_without_a_bias_is_nan_with_the_reason(show, world):
    result = asked(world, torch.full((6,), math.nan).double(), show=show, updates=5)
    assert np.isnan(result.values).all()
    assert "NaN: the router adds no bias to its scores." in result.caveats


def test_impossible_updates_are_refused(world):
    for knobs in ({"rate": 0.0}, {"updates": -1}):
        with pytest.raises(BadKnob, match=f"{next(iter(knobs))!r} is "):
            asked(world, torch.zeros(4).double(), **knobs)
