"""Gradient identities of one MoE block under four gate rules, against autograd in float64."""

import math

import pytest
import torch
from torch.nn import functional as F

from analysis.expert import Expert
from analysis.gate_rules import balance_gradient, combine_weights, expert_rows, task_gradient, z_gradient

EXPERTS, K, HIDDEN, MODEL, TOKENS = 6, 2, 4, 5, 11
RULES = ("softmax", "softmax_selected", "sigmoid", "sigmoid_selected")


def block(rule, tokens=TOKENS, k=K, seed=0):
    """A block run forward with autograd: everything the closed forms read, and what autograd says of the loss."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    x, rows = normal(tokens, MODEL), normal(EXPERTS, MODEL).requires_grad_()
    gate, up = (normal(EXPERTS, HIDDEN, MODEL).requires_grad_() for _ in range(2))
    down = normal(EXPERTS, MODEL, HIDDEN).requires_grad_()
    logits = x @ rows.T
    selected = torch.zeros(tokens, EXPERTS, dtype=torch.bool).scatter_(1, logits.topk(k, -1).indices, True)
    every = [Expert(gate[e], up[e], down[e], lambda g, u: F.silu(g) * u) for e in range(EXPERTS)]
    outputs = torch.stack([e(x) for e in every], 1)
    g = combine_weights(logits, selected, rule)
    y = (g[..., None] * outputs).sum(1)
    y.retain_grad()
    (y * normal(tokens, MODEL)).sum().add(y.square().sum()).backward()
    gains = (y.grad[:, None] * outputs).sum(-1).detach()
    found = {"x": x, "logits": logits, "selected": selected, "g": g, "gains": gains, "pulled": y.grad}
    return {name: t.detach() for name, t in found.items()} | {"rows": rows, "gate": gate, "up": up, "down": down}


def experts(b):
    return [Expert(*(b[n][e].detach() for n in ("gate", "up", "down")), lambda g, u: F.silu(g) * u) for e in range(6)]


@pytest.mark.parametrize("rule", RULES)
def test_router_rows_get_what_autograd_gives(rule):
    b = block(rule)
    d = task_gradient(b["logits"], b["selected"], b["gains"], rule)
    torch.testing.assert_close(d.T @ b["x"], b["rows"].grad, rtol=0, atol=1e-12 * float(b["rows"].grad.abs().max()))
    assert b["rows"].grad.abs().max() > 0.1


@pytest.mark.parametrize("rule", RULES)
def test_expert_rows_get_what_autograd_gives_and_lie_in_the_span_of_their_tokens(rule):
    b = block(rule, tokens=3)
    for e, each in enumerate(experts(b)):
        pulled = b["g"][:, e, None] * b["pulled"]
        gate, up = expert_rows(each, b["x"], pulled)
        torch.testing.assert_close(gate.T @ b["x"], b["gate"].grad[e], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(up.T @ b["x"], b["up"].grad[e], rtol=1e-12, atol=1e-12)
        activations = F.silu(b["x"] @ each.gate.T) * (b["x"] @ each.up.T)
        torch.testing.assert_close(pulled.T @ activations, b["down"].grad[e], rtol=1e-12, atol=1e-12)
        own = b["x"][b["selected"][:, e]]
        rank = torch.linalg.matrix_rank(torch.cat([own, b["gate"].grad[e]])) if len(own) else 0
        assert rank == len(own)


@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_of_a_row_that_was_not_selected(rule):
    b = block(rule)
    d = task_gradient(b["logits"], b["selected"], b["gains"], rule)
    leak = d[~b["selected"]]
    if rule != "softmax":
        assert (leak == 0).all()
        return
    p = b["logits"].softmax(-1)
    mean = (p * b["gains"] * b["selected"]).sum(-1, keepdim=True)
    torch.testing.assert_close(leak, (-p * mean)[~b["selected"]], rtol=0, atol=1e-12)
    assert (leak != 0).all()


def test_one_token_of_olmoe_moves_an_unselected_row_by_its_probability_times_the_mean_gain():
    b = block("softmax", tokens=1)
    p = b["logits"][0].softmax(-1)
    mean = float((p * b["gains"][0] * b["selected"][0]).sum())
    for e in (~b["selected"][0]).nonzero()[:, 0].tolist():
        expected = float(p[e]) * abs(mean) * float(b["x"].norm())
        assert float(b["rows"].grad[e].norm()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_softmax_rules_cannot_move_the_mean_row(rule):
    b = block(rule)
    total = b["rows"].grad.sum(0)
    if rule.startswith("softmax"):
        torch.testing.assert_close(total, torch.zeros(MODEL).double(), rtol=0, atol=1e-12)
    else:
        assert total.abs().max() > 0.1


def test_one_token_pulls_router_row_and_expert_rows_along_the_same_line():
    b = block("softmax_selected", tokens=1)
    for e in b["selected"][0].nonzero()[:, 0].tolist():
        for part in ("gate", "up"):
            matrix = b[part].grad[e]
            assert torch.linalg.matrix_rank(matrix) == 1
            assert (matrix.norm(dim=-1) > 0).all()
            found = F.cosine_similarity(matrix, b["rows"].grad[e][None], dim=-1).abs()
            torch.testing.assert_close(found, torch.ones(HIDDEN).double(), rtol=0, atol=1e-12)
    assert (b["rows"].grad[~b["selected"][0]] == 0).all()


def test_a_single_renormalised_expert_gives_its_router_nothing():
    b = block("softmax_selected", k=1)
    d = task_gradient(b["logits"], b["selected"], b["gains"], "softmax_selected")
    torch.testing.assert_close(d, torch.zeros_like(d), rtol=0, atol=1e-12)
    torch.testing.assert_close(b["rows"].grad, torch.zeros_like(b["rows"]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_plain_descent_accumulates_the_signed_sum_of_tokens(rule):
    """r(n) - r(0) = -eta sum of D x: two steps on the same selection."""
    b, eta = block(rule), 0.1
    rows, moved = b["rows"].detach().clone(), torch.zeros_like(b["rows"])
    for _ in range(2):
        logits = (b["x"] @ rows.T).requires_grad_()
        (combine_weights(logits, b["selected"], rule) * b["gains"]).sum().backward()
        rows -= eta * logits.grad.T @ b["x"]
        moved += task_gradient(logits.detach(), b["selected"], b["gains"], rule).T @ b["x"]
    torch.testing.assert_close(rows - b["rows"].detach(), -eta * moved, rtol=0, atol=1e-11)


def test_the_balance_loss_moves_every_row_by_every_token_and_not_their_mean():
    b = block("softmax")
    loads = b["selected"].double().mean(0) / K
    logits = b["logits"].clone().requires_grad_()
    (EXPERTS * (loads * logits.softmax(-1).mean(0)).sum()).backward()
    d = balance_gradient(b["logits"].softmax(-1), loads)
    torch.testing.assert_close(d, logits.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(d.sum(-1), torch.zeros(TOKENS).double(), rtol=0, atol=1e-12)
    assert (d != 0).all()


def test_balanced_loads_leave_the_balance_loss_without_a_gradient():
    d = balance_gradient(block("softmax")["logits"].softmax(-1), torch.full((EXPERTS,), 1 / EXPERTS).double())
    torch.testing.assert_close(d, torch.zeros_like(d), rtol=0, atol=1e-15)


def test_the_z_loss_pushes_all_rows_the_same_way():
    b = block("softmax")
    logits = b["logits"].clone().requires_grad_()
    torch.logsumexp(logits, -1).square().mean().backward()
    d = z_gradient(b["logits"])
    torch.testing.assert_close(d, logits.grad, rtol=0, atol=1e-12)
    lse = torch.logsumexp(b["logits"], -1)
    torch.testing.assert_close((d.T @ b["x"]).sum(0), 2 / TOKENS * lse @ b["x"], rtol=0, atol=1e-12)
    assert (d.sign() == lse.sign()[:, None]).all()


@pytest.mark.parametrize("rule", RULES)
def test_weights_are_those_of_the_rule(rule):
    logits = torch.tensor([[math.log(4.0), 0.0, 0.0]]).double()
    selected = torch.tensor([[True, True, False]])
    expected = {
        "softmax": [4 / 6, 1 / 6, 0],
        "softmax_selected": [4 / 5, 1 / 5, 0],
        "sigmoid": [4 / 5, 1 / 2, 0],
        "sigmoid_selected": [8 / 13, 5 / 13, 0],
    }[rule]
    torch.testing.assert_close(combine_weights(logits, selected, rule)[0], torch.tensor(expected).double())
