"""Chance of experts whose weights are shuffled: the closed form against shuffling them, and what copies show of it."""

import dataclasses

import numpy as np
import pytest
import torch

from analysis.inference import evaluate
from analysis.jacobians import MeanJacobians, cosines, gram, probes, sketched_products
from analysis.measure import get
from analysis.result import Reason
from analysis.shuffled import shuffled_cosines
from tests.analysis.test_jacobian_chance import inside, random_experts, side_of

MODEL, HIDDEN, COPIES = 48, 32, 8
PAIRS = np.triu_indices(COPIES, 1)
KNOBS = {"baseline": "shuffled weights"}


def copies(shift, gate=True):
    """Eight times the same expert, as upcycling leaves them; entries of up and down have means of `shift` spreads."""
    generator = torch.Generator().manual_seed(0)
    normal = lambda *size: torch.randn(*size, dtype=torch.float64, generator=generator)  # noqa: E731
    every = lambda one: one.expand(COPIES, *one.shape)  # noqa: E731
    slopes = [every(normal(HIDDEN) + 0.3) for _ in range(2)]
    up, down = every(normal(HIDDEN, MODEL) + shift), every(normal(MODEL, HIDDEN) + shift)
    return MeanJacobians(every(3 * normal(HIDDEN, MODEL)) if gate else None, up, down, slopes[0], slopes[1])


def shuffled(jacobians, generator):
    """Each matrix of each expert with its entries in a random order."""

    def dealt(stack):
        flat = [one.flatten()[torch.randperm(one.numel(), generator=generator)].view_as(one) for one in stack]
        return torch.stack(flat)

    gate = None if jacobians.gate is None else dealt(jacobians.gate)
    return dataclasses.replace(jacobians, gate=gate, up=dealt(jacobians.up), down=dealt(jacobians.down))


@pytest.mark.parametrize(("gate", "shift"), [(True, 0.0), (True, 1.5), (False, 0.0), (False, 1.0)])
def test_the_closed_form_is_what_shuffling_the_entries_gives(gate, shift):
    own, generator = copies(shift, gate), torch.Generator().manual_seed(1)
    seen = {MODEL: [], 6: []}
    for _ in range(40):
        made = shuffled(own, generator)
        seen[MODEL].append(cosines(gram(made))[PAIRS])
        seen[6].append(cosines(sketched_products(made.along(probes(MODEL, 6)))[0])[PAIRS])
    for directions, drawn in seen.items():
        drawn = torch.cat(drawn)
        mean, spread = (part[PAIRS] for part in shuffled_cosines(own, directions))
        # 1,120 pairs: the standard error of their spread is 2 %; leading order leaves out 1 / 32.
        assert float(drawn.std()) == pytest.approx(float(spread[0]), rel=0.08)
        assert float(drawn.mean()) == pytest.approx(float(mean[0]), abs=0.2 * float(spread[0]))
    assert torch.allclose(mean, mean[0]) and torch.allclose(spread, spread[0])


def test_without_a_mean_of_entries_chance_is_one_over_the_square_root_of_what_is_seen():
    own = copies(0.0)
    centred = {n: getattr(own, n) - getattr(own, n).mean((1, 2), keepdim=True) for n in ("gate", "up", "down")}
    for directions in (MODEL, 6):
        mean, spread = shuffled_cosines(dataclasses.replace(own, **centred), directions)
        torch.testing.assert_close(spread, torch.full_like(spread, (MODEL * directions) ** -0.5))
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", ["common", "served"])
def test_copies_are_aligned_and_their_shuffled_weights_are_not(world, tokens):
    twins = random_experts(0, count=1, model=64, hidden=16) * 6
    found = evaluate(get("jacobian_alignment"), side_of(world, twins)[:1], dict(KNOBS, tokens=tokens))
    pairs = (0, *np.triu_indices(6, 1))
    if tokens == "common":
        np.testing.assert_allclose(found.values[pairs], 1, atol=1e-6)  # in float32
    assert (found.values[pairs] > 0.9).all() and not inside(found, pairs).any()
    low, high = (getattr(found.null, bound)[pairs] for bound in ("low", "high"))
    assert (low < 0).all() and (high > 0).all() and (high - low < 5 / 64).all()
    assert "mean slopes kept" in found.null.how and (found.null.low[0].diagonal() == 1).all()


KNOBS = {"baseline": "shuffled weights"}


def test_single_tokens_have_no_band_of_shuffled_weights(world):
    found = evaluate(
        get("jacobian_alignment"), side_of(world, random_experts(0, count=4))[:1], dict(KNOBS, tokens="each")
    )
    assert isinstance(found.null, Reason) and "single tokens are not kept" in found.null.reason
