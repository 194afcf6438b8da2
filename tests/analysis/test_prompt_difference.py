"""Which prompts two routers treat differently: intervals over stretches of tokens, and the p of exchanged sides."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.errors import BadDeclaration
from analysis.inference import FEWEST_TOKENS, evaluate
from analysis.measure import Inputs, get
from analysis.measure import measure as declared
from analysis.outcomes import fisher_rao
from analysis.slots import RouteBatch

MEASURE = get("prompt_difference")
ASKED = {"matching": "identity"}


def asked(world, scores, lengths, **changes):
    """Two routers' scores of the same tokens, layer by token by expert, as an answer."""
    keys = world.token_keys(lengths, torch.Generator().manual_seed(0))
    sides = []
    for side in scores:
        top = side.topk(world.SHAPE.top_k, -1)
        served, margins = torch.ones_like(top.indices, dtype=torch.bool), torch.ones(side.shape[:2])
        batch = RouteBatch(
            world.SHAPE, world.prompts(len(lengths)), keys, top.indices, top.values.sigmoid(), served, margins
        )
        sides.append(Inputs(world.SHAPE, {"token_routes": world.state_of("token_routes", [batch])}))
    return evaluate(dataclasses.replace(MEASURE, **changes), tuple(sides), ASKED)


def tokens_of(centres, count, generator):
    """Inputs of `count` tokens of each prompt, layer by token by model: alike within the prompt."""
    noise = 0.8 * torch.randn(len(centres), count, *centres.shape[1:], generator=generator)
    return (centres[:, None] + noise).flatten(0, 1).transpose(0, 1)


def routers(world, apart, generator):
    size = (len(world.SHAPE.layers), world.SHAPE.model, world.SHAPE.experts)
    first = torch.randn(size, generator=generator)
    return first, first + apart * torch.randn(size, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize(("apart", "tokens"), [(0.2, 40), (0.7, 40), (0.7, 120)])
def test_intervals_hold_the_distance_of_endless_tokens_of_the_prompt(apart, tokens, world):
    generator, prompts, endless = torch.Generator().manual_seed(3), 120, 2000
    pair = routers(world, apart, generator)
    centres = 0.4 + 0.6 * torch.randn(prompts, len(world.SHAPE.layers), world.SHAPE.model, generator=generator)
    counts = []
    for router in pair:
        chosen = (tokens_of(centres, endless, generator.manual_seed(4)) @ router).topk(2, -1).indices
        one_hot = torch.zeros(len(router), prompts * endless, 6, dtype=torch.float64).scatter_(-1, chosen, 1.0)
        counts.append(one_hot.unflatten(1, (prompts, endless)).sum(2))
    truth = fisher_rao(*counts).T.numpy()
    seen = tokens_of(centres, tokens, generator.manual_seed(5))
    result = asked(world, [seen @ router for router in pair], (tokens,) * prompts, null=None)
    low, high = result.interval.low, result.interval.high
    truth = truth[[int(label[1:]) for label in result.axes[0].labels]]  # an answer has its prompts by category
    there = ~np.isnan(low)
    assert there.mean() > 0.95
    held = ((low <= truth) & (truth <= high))[there]
    assert 0.92 <= held.mean() <= 0.98, f"{held.mean():.3f} of {held.size}"


def test_a_short_prompt_and_one_without_a_difference_have_no_interval_and_the_caveat_counts_them(world):
    generator = torch.Generator().manual_seed(0)
    lengths = (FEWEST_TOKENS, FEWEST_TOKENS - 1, FEWEST_TOKENS)
    scores = torch.randn(len(world.SHAPE.layers), sum(lengths), 6, generator=generator)
    other = torch.randn(scores.shape, generator=generator)
    other[:, -FEWEST_TOKENS:] = scores[:, -FEWEST_TOKENS:]
    result = asked(world, (scores, other), lengths, null=None)
    known = {
        label: not np.isnan(row).any() for label, row in zip(result.axes[0].labels, result.interval.low, strict=True)
    }
    assert known == {"p00": True, "p01": False, "p02": False}
    assert np.isnan(result.interval.low).all(1).sum() == 2
    assert any(c.startswith("No interval for 6 of 9 values: their prompts have fewer than 40") for c in result.caveats)


def test_stretches_are_neighbours_and_leave_nothing_out_twice(world):
    batch = world.routes(lengths=(9, 16, 3))
    state = world.state_of("token_routes", [batch])
    gone = []
    for stretch in range(8):
        left = state.without_stretch(stretch)
        kept = set(zip(left["prompt"].tolist(), left["position"].tolist(), strict=True))
        gone.append(sorted({(p, i) for p, n in enumerate((9, 16, 3)) for i in range(n)} - kept))
    assert sorted(token for left_out in gone for token in left_out) == [
        (p, i) for p, n in enumerate((9, 16, 3)) for i in range(n)
    ]
    assert gone[1] == [(0, 2), (1, 2), (1, 3)]
    assert gone[0] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


def test_only_what_is_kept_token_by_token_can_be_of_each_prompt():
    about = dict(title="t", question="q", unit="u", family="routing", source="s", axes=("prompt",))

    def number(prompt_counts):
        return prompt_counts

    with pytest.raises(BadDeclaration, match="kept token by token"):
        declared(**about, of_each_prompt=True)(number)


def sign_flip_p(world, seed, planted):
    """One router seen twice with noise of its own; what is planted, if at all: another router for one prompt."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(world.SHAPE.layers), 8 * 20, 6, generator=generator)
    pair = [scores + torch.randn(scores.shape, generator=generator) for _ in range(2)]
    if planted:
        pair[1][:, 60:80, :2] += 3
    return asked(world, pair, (20,) * 8, interval_reason="not asked").facts


@pytest.mark.slow
def test_exchanged_sides_give_a_p_of_its_nominal_size_and_find_what_is_planted(world):
    quiet = np.array([sign_flip_p(world, seed, planted=False)["sign-flip p"] for seed in range(60)])
    # Binomial(60, 0.05) is at most 8 in 99.5 %, and the mean of 60 uniform numbers 0.5 +- 3 x 0.037.
    assert (quiet <= 0.05).sum() <= 8
    assert abs(quiet.mean() - 0.5) < 0.11
    found = sign_flip_p(world, 0, planted=True)
    assert found["sign-flip p"] == 1 / 200
    assert found["prompts that differ beyond chance (max-statistic)"] == "1 of 8"
    assert found["most different"].startswith("p03")
