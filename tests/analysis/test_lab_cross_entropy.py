"""The head's loss in parts is the loss in one piece, and so is its gradient."""

import torch
from torch.nn import functional as F
from torch.testing import assert_close

from analysis.lab.cross_entropy import AT_ONCE, linear_cross_entropy


def test_loss_and_gradients_equal_those_of_the_whole_table() -> None:
    draw = torch.Generator().manual_seed(0)
    tokens = 2 * AT_ONCE + 5  # two full parts and a short one
    hidden = torch.randn(tokens, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(30, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(30, (tokens,), generator=draw)
    whole = F.cross_entropy(hidden @ weight.T, targets)
    expected = torch.autograd.grad(3 * whole, (hidden, weight))
    ours = linear_cross_entropy(hidden, weight, targets)
    assert_close(ours, whole)
    assert_close(torch.autograd.grad(3 * ours, (hidden, weight)), expected)


def test_a_large_logit_overflows_nothing() -> None:
    hidden, weight = torch.tensor([[100.0]]), torch.tensor([[-100.0], [100.0]])
    assert_close(linear_cross_entropy(hidden, weight, torch.tensor([0])), torch.tensor(20_000.0))
