"""An expert's slopes and Jacobians in closed form, against automatic differentiation of the expert itself."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from analysis.expert import Expert

ROWS, MODEL, HIDDEN = 7, 5, 6
PHIS = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "relu": lambda gate, up: F.relu(gate) * up,
    "clamped": lambda gate, up: (
        (up.clamp(-0.7, 0.7) + 1) * gate.clamp(max=0.7) * torch.sigmoid(1.702 * gate.clamp(max=0.7))
    ),
    "sum of both": lambda gate, up: torch.tanh(gate + up**2),
    "ungated": lambda gate, up: F.relu(up) ** 2,
}


@pytest.fixture(params=[(name, biased) for name in PHIS for biased in (False, True)], ids=str)
def made(request):
    name, biased = request.param
    generator = torch.Generator().manual_seed(3)
    draw = lambda *size: torch.randn(*size, dtype=torch.float64, generator=generator)  # noqa: E731
    gate, up, down = draw(HIDDEN, MODEL), draw(HIDDEN, MODEL), draw(MODEL, HIDDEN)
    biases = (draw(HIDDEN), draw(HIDDEN), draw(MODEL)) if biased else (None, None, None)
    if name == "ungated":
        gate, biases = None, (None, *biases[1:])
    return Expert(gate, up, down, PHIS[name], *biases), draw(ROWS, MODEL), draw(ROWS, MODEL)


def jacobians(expert, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its first compilation
        return torch.func.vmap(torch.func.jacrev(lambda row: expert(row[None])[0]))(x)


def test_the_jacobian_of_each_row_follows_from_its_slopes(made):
    expert, x, _ = made
    truth = jacobians(expert, x)
    gate, up = expert.slopes_each(x)
    inner = up[..., None] * expert.up
    inner = inner if gate is None else inner + gate[..., None] * expert.gate
    torch.testing.assert_close(expert.down @ inner, truth, rtol=1e-10, atol=1e-10)
    assert (gate is None) == (expert.gate is None)


def test_mean_slopes_give_the_mean_jacobian(made):
    expert, x, _ = made
    torch.testing.assert_close(expert.mean_jacobian(x), jacobians(expert, x).mean(0), rtol=1e-10, atol=1e-10)
    for mean, each in zip(expert.slopes(x), expert.slopes_each(x), strict=True):
        assert (mean is None) == (each is None)
        if mean is not None:
            torch.testing.assert_close(mean, each.mean(0), rtol=1e-12, atol=1e-12)


def test_a_product_with_the_jacobian_needs_no_jacobian(made):
    expert, x, v = made
    truth = jacobians(expert, x)
    torch.testing.assert_close(expert.jvp(x, v), torch.einsum("rom,rm->ro", truth, v), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(expert.jvp(x, v[0]), truth @ v[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(expert.along(x, v.T), truth.mean(0) @ v.T, rtol=1e-10, atol=1e-10)


def test_slopes_at_given_preactivations_are_those_of_the_rows_behind_them(made):
    expert, x, _ = made
    for one, other in zip(expert.slopes_at(*expert.preactivations(x)), expert.slopes_each(x), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_no_graph_is_kept_and_nothing_is_changed(made):
    expert, x, v = made
    kept = x.clone()
    with torch.no_grad():
        found = (*expert.slopes_each(x), expert.jvp(x, v), expert(x))
    assert all(t is None or not t.requires_grad for t in found) and torch.equal(x, kept) and not x.requires_grad


def test_an_expert_in_another_precision_is_the_same_expert(made):
    expert, x, _ = made
    single = expert.to(torch.float32)
    torch.testing.assert_close(single(x.float()).double(), expert(x), rtol=1e-4, atol=1e-4)
    assert single.phi is expert.phi and (single.gate is None) == (expert.gate is None)
