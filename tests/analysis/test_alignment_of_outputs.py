"""CKA: against its definition, blind to rotation and scale, biased where it must be, and NaN where nothing varies."""

import math

import numpy as np
import pytest
import torch

from analysis.inference import evaluate
from analysis.linalg import orthonormal
from analysis.measure import Inputs, get
from analysis.slots import Prompts, Shape, text_digest
from analysis.spec import EMPTY
from analysis.statistic import State

NAMES = tuple(f"p{i}" for i in range(16))
HELD = Prompts(NAMES, tuple(map(text_digest, NAMES)), ("all",) * 16)


def rows(seed, tokens, model):
    return torch.randn(tokens, model, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ask(experts, empty=0, **knobs):
    """Of one layer; `empty` places of the sample stay so."""
    tokens, model = experts[0].shape
    shape = Shape(("0",), len(experts), 1, model, 8)
    output = torch.full((1, tokens + empty, len(experts), model), torch.nan, dtype=torch.float64)
    output[0, :tokens] = torch.stack(experts, 1)
    hashes = torch.full((1, tokens + empty), EMPTY)
    hashes[0, :tokens] = torch.arange(tokens)
    block = torch.full((1, tokens + empty), -1)
    block[0, :tokens] = torch.tensor(HELD.blocks)[torch.arange(tokens) % 16]
    arrays = {"hash": hashes, "block": block, "output": output, "shared": output[:, :, 0] * torch.nan}
    side = Inputs(shape, {"expert_rows": State("expert_rows", shape, HELD, arrays)})
    return evaluate(get("centred_kernel_alignment"), (side,), knobs)


def unbiased_hsic(x, y):
    """Song et al. 2012, written out with the matrix of ones and traces."""
    n = len(x)
    k, l = x @ x.T, y @ y.T  # noqa: E741
    np.fill_diagonal(k, 0)
    np.fill_diagonal(l, 0)
    one = np.ones(n)
    mixed = 2 / (n - 2) * one @ k @ l @ one
    return (np.trace(k @ l) + one @ k @ one * (one @ l @ one) / ((n - 1) * (n - 2)) - mixed) / (n * (n - 3))


def test_debiased_and_biased_are_their_definitions():
    x, y = rows(0, 30, 12) + 5, rows(1, 30, 12) @ torch.diag(torch.arange(1.0, 13)).double()
    a, b = x.numpy(), y.numpy()
    expected = unbiased_hsic(a, b) / math.sqrt(unbiased_hsic(a, a) * unbiased_hsic(b, b))
    assert ask([x, y]).values[0, 0, 1] == pytest.approx(expected, abs=1e-12)
    a, b = a - a.mean(0), b - b.mean(0)
    linear = np.linalg.norm(b.T @ a) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    assert ask([x, y], biased=True).values[0, 0, 1] == pytest.approx(linear, abs=1e-12)


@pytest.mark.parametrize("biased", [False, True])
def test_rotated_scaled_and_shifted_copies_are_the_same(biased):
    x = rows(0, 40, 10)
    copy = 3 * x @ orthonormal(rows(1, 10, 10)) + 7
    found = ask([x, copy, x], biased=biased).values[0]
    np.testing.assert_allclose(found, 1, atol=1e-12)
    assert (np.diag(found) == 1).all()


def test_unrelated_outputs_are_at_zero_only_when_debiased():
    """Fewer tokens than dimensions: the biased value is near 1 whatever the experts do."""
    experts = [rows(seed, 40, 200) for seed in range(8)]
    debiased, biased = (ask(experts, biased=b) for b in (False, True))
    pairs = np.triu_indices(8, 1)
    assert abs(debiased.values[0][pairs].mean()) < 0.02
    assert biased.values[0][pairs].mean() > 0.8
    assert abs(debiased.facts["with tokens mismatched"]) < 0.02
    assert debiased.facts["tokens"] == 40 and debiased.facts["pairs"] == 28


@pytest.mark.slow
def test_half_shared_output_is_half_aligned():
    """x and (x + y)/sqrt 2 with white x, y: CKA is 1/2 for infinitely many tokens."""
    x, y = rows(0, 2000, 8), rows(1, 2000, 8)
    assert ask([x, (x + y) / math.sqrt(2)]).values[0, 0, 1] == pytest.approx(0.5, abs=0.03)


def test_an_expert_that_gives_one_answer_has_no_alignment_and_harms_no_other():
    x, y = rows(0, 30, 6), rows(1, 30, 6)
    before, after = ask([x, y]), ask([x, y, torch.full_like(x, 0.1)])
    assert np.isnan(after.values[0, 2]).all()
    assert after.values[0, 0, 1] == pytest.approx(before.values[0, 0, 1], abs=1e-14)
    assert any(caveat.startswith("NaN: fewer than 4 tokens") for caveat in after.caveats)


def test_empty_places_count_nowhere_and_three_tokens_are_too_few():
    x, y = rows(0, 30, 6), rows(1, 30, 6)
    np.testing.assert_allclose(ask([x, y], empty=9).values, ask([x, y]).values, atol=1e-14)
    assert np.isnan(ask([x[:3], y[:3]]).values).all()


def test_outputs_are_those_of_the_experts_for_the_sampled_tokens(world):
    """The statistic: the rows of lowest hash, each expert asked about each of them."""
    from analysis.sampling import token_hash
    from analysis.statistics.expert_rows import ROWS

    batch = world.layers()[1]
    state = world.state_of("expert_rows", [batch])
    hashes = token_hash(batch.prompts, batch.keys)
    chosen = hashes.argsort()[:ROWS]
    assert torch.equal(state["hash"][1], hashes[chosen])
    for e, expert in enumerate(batch.experts):
        expected = expert.to(torch.float64)(batch.expert_input[chosen].double())
        torch.testing.assert_close(state["output"][1, :, e].double(), expected, rtol=2**-8, atol=1e-6)
    assert state["shared"].isnan().all()
    torch.testing.assert_close(
        world.state_of("common_rows", [batch])["input"][1, :ROWS].float(),
        batch.expert_input[chosen],
        rtol=2**-8,
        atol=0,
    )


def test_routed_rows_are_the_inputs_and_weights_of_served_tokens(world):
    from analysis.sampling import token_hash

    batch = world.layers()[2]
    state = world.state_of("routed_rows", [batch])
    hashes, expert = token_hash(batch.prompts, batch.keys), 3
    mine = [
        (int(hashes[t]), t, s)
        for t in range(len(batch.keys))
        for s in range(2)
        if batch.served[t, s] and int(batch.indices[t, s]) == expert
    ]
    for place, (hash, t, s) in enumerate(sorted(mine)):
        assert int(state["hash"][2, expert, place]) == hash
        assert float(state["weight"][2, expert, place]) == float(batch.weights[t, s])
        torch.testing.assert_close(state["input"][2, expert, place], batch.expert_input[t].bfloat16(), rtol=0, atol=0)
        assert int(state["block"][2, expert, place]) == batch.prompts.blocks[int(batch.keys.prompt[t])]
    assert (state["hash"][2, expert, len(mine) :] == EMPTY).all() and state["input"][2, expert, len(mine)].isnan().all()
    assert int(state["served"][:, 2, expert].sum()) == len(mine)
    assert (
        state["seen"][:, 2].tolist()
        == np.bincount([batch.prompts.blocks[p] for p in batch.keys.prompt.tolist()], minlength=8).tolist()
    )
