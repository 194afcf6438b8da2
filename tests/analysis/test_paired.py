"""Paired changes: a planted shift comes back with the interval its scatter deserves, and selections are sets."""

from __future__ import annotations

import pytest
import torch

from analysis.paired import loss_change, selections_changed

BLOCKS = tuple(n % 8 for n in range(40))


def test_a_shift_that_is_the_same_at_every_token_comes_back_without_scatter() -> None:
    tokens = torch.randint(5, 30, (40,), generator=torch.Generator().manual_seed(0))
    before = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 99
    found = loss_change(before, before + 0.25 * tokens, tokens, BLOCKS)
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25), abs=1e-12)
    still = loss_change(before, before, tokens, BLOCKS)
    assert (still.value, still.low, still.high) == (0, 0, 0)


def test_the_interval_covers_a_planted_shift_at_its_level() -> None:
    drawn, covered = torch.Generator().manual_seed(2), 0
    tokens = torch.full((40,), 20)
    for _ in range(400):
        noise = torch.randn(40, dtype=torch.float64, generator=drawn)
        before = torch.zeros(40, dtype=torch.float64)
        found = loss_change(before, before + 20 * 0.1 + noise, tokens, BLOCKS)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.1 <= found.high
    assert 0.915 <= covered / 400 <= 0.985  # 95 % within three standard errors of 400 draws


def test_few_blocks_give_a_value_and_the_reason_for_no_interval() -> None:
    losses, tokens = torch.ones(4, dtype=torch.float64), torch.tensor([2, 2, 2, 0])
    found = loss_change(losses, 2 * losses, tokens, (0, 1, 1, 2))
    assert found.value == pytest.approx(4 / 6) and found.low is None and "2 block(s)" in found.reason


def test_selections_are_sets_whose_order_and_number_may_differ() -> None:
    one = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [2, -1]]])
    assert selections_changed(one, one.flip(-1), 4).tolist() == [0, 0]
    other = torch.tensor([[[1, 2], [3, 0]], [[3, 2], [1, 0]]])
    assert selections_changed(one, other, 4).tolist() == pytest.approx([0.5, 1.0])
    wider = torch.tensor([[[0, 1, 2], [2, 3, 0]], [[-1, -1, -1], [-1, -1, -1]]])
    assert selections_changed(one, wider, 4).tolist() == pytest.approx([2 / 10, 1.0])
    nobody = torch.full((1, 2, 2), -1)
    assert selections_changed(nobody, nobody, 4).isnan().all()
