"""The mean Jacobian in closed form, and products of all pairs, against autograd and the dense matrices."""

import pytest
import torch
from torch.func import jacrev, vmap
from torch.nn import functional as F

from analysis.expert import Expert
from analysis.jacobians import (
    MeanJacobians,
    cosines,
    gram,
    of_layer,
    pair_product,
    probes,
    row_products,
    sketched_products,
)

EXPERTS, HIDDEN, MODEL, TOKENS = 5, 6, 7, 9


def gpt_oss(gate, up):
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


PHIS = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "gpt_oss": gpt_oss,
    "ungated": lambda gate, up: F.relu(up).square(),
}


def normal(*size, seed=0):
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def expert(kind, seed=0):
    gate = None if kind == "ungated" else normal(HIDDEN, MODEL, seed=3 * seed)
    bias = None if kind == "ungated" else normal(HIDDEN, seed=100 + seed)
    up, down = normal(HIDDEN, MODEL, seed=3 * seed + 1), normal(MODEL, HIDDEN, seed=3 * seed + 2)
    return Expert(gate, up, down, PHIS[kind], bias, normal(HIDDEN, seed=200 + seed), normal(MODEL, seed=300 + seed))


def layer(kind="silu", dtype=torch.float64):
    every = [expert(kind, seed) for seed in range(EXPERTS)]
    x = normal(TOKENS, MODEL, seed=77)
    slopes = [e.slopes(x) for e in every]
    gate = None if kind == "ungated" else torch.stack([e.gate for e in every]).to(dtype)
    gate_slope = None if kind == "ungated" else torch.stack([s[0] for s in slopes])
    up, down = (torch.stack([getattr(e, part) for e in every]).to(dtype) for part in ("up", "down"))
    return every, x, MeanJacobians(gate, up, down, gate_slope, torch.stack([s[1] for s in slopes]))


@pytest.mark.parametrize("kind", PHIS)
def test_the_closed_form_is_the_mean_of_what_autograd_finds(kind):
    every, x, jacobians = layer(kind)
    for index, each in enumerate(every):
        found = vmap(jacrev(lambda row, e=each: e(row[None])[0]))(x).mean(0)
        torch.testing.assert_close(jacobians.dense(index), found, rtol=0, atol=1e-10)
        assert found.abs().max() > 0.1


@pytest.mark.parametrize("kind", ["silu", "ungated"])
@pytest.mark.parametrize("columns", [1, 3, 100])
def test_products_in_blocks_are_those_of_the_dense_matrices(kind, columns):
    _, _, jacobians = layer(kind)
    flat = torch.stack([jacobians.dense(e).flatten() for e in range(EXPERTS)])
    found = gram(jacobians, budget=EXPERTS * MODEL * 8 * columns)
    torch.testing.assert_close(found, flat @ flat.T, rtol=1e-12, atol=0)
    for first in range(EXPERTS):
        for second in range(EXPERTS):
            pair = pair_product(jacobians, first, second)
            torch.testing.assert_close(pair, flat[first] @ flat[second], rtol=1e-12, atol=1e-12)


def test_an_expert_without_tokens_is_nan_and_leaves_the_others_alone():
    _, _, jacobians = layer()
    whole = gram(jacobians)
    jacobians.up_slope[2] = torch.nan
    found = gram(jacobians)
    assert found[2].isnan().all() and found[:, 2].isnan().all()
    keep = [0, 1, 3, 4]
    torch.testing.assert_close(found[keep][:, keep], whole[keep][:, keep], rtol=0, atol=0)


def test_half_precision_weights_are_multiplied_out_in_a_wider_type():
    _, _, exact = layer()
    _, _, half = layer(dtype=torch.bfloat16)
    rounded = MeanJacobians(*(w.bfloat16().double() for w in (exact.gate, exact.up, exact.down)), *slopes(exact))
    torch.testing.assert_close(gram(half), gram(rounded), rtol=1e-12, atol=1e-12)


def slopes(jacobians):
    return jacobians.gate_slope, jacobians.up_slope


def test_the_working_memory_stays_within_the_budget(monkeypatch):
    _, _, jacobians = layer()
    taken, empty = [], torch.empty

    def watched(*size, **keywords):
        taken.append(empty(*size, **keywords).nbytes)
        return empty(*size, **keywords)

    monkeypatch.setattr(torch, "empty", watched)
    budget = EXPERTS * MODEL * 8 * 2
    gram(jacobians, budget)
    assert 0 < max(taken) <= budget


def test_long_float32_rows_are_summed_in_float64():
    rows = torch.ones(2, 2**24 + 3)
    assert row_products(rows)[0, 1] == 2**24 + 3  # in float32 16777216 + 1 is 16777216


def test_a_whole_frame_of_probes_is_exact_and_a_part_of_it_says_how_far_off():
    _, _, jacobians = layer()
    exact = gram(jacobians)
    found, _ = sketched_products(jacobians.along(probes(MODEL, MODEL)))
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)
    one, error = sketched_products(jacobians.along(probes(MODEL, 1)))
    assert error.isnan().all() and one.isfinite().all()


def test_the_sketch_is_off_by_about_its_standard_error():
    generator = torch.Generator().manual_seed(0)
    gate, up = torch.randn(2, 4, 40, 60, generator=generator).double()
    up[1:] += up[0]  # some likeness to find
    down = torch.randn(4, 60, 40, generator=generator).double()
    down[1] += down[0]
    slope = torch.rand(2, 4, 40, generator=generator).double()
    jacobians = MeanJacobians(gate, up, down, *slope)
    exact, pairs = cosines(gram(jacobians)), torch.triu_indices(4, 4, 1)
    off = []
    for seed in range(40):
        found, error = sketched_products(jacobians.along(probes(60, 12, seed)))
        off.append(((cosines(found) - exact) / error)[pairs[0], pairs[1]])
    rms = float(torch.cat(off).square().mean().sqrt())
    assert 0.6 < rms < 1.3
    assert exact[0, 1] > 0.2


def test_probes_are_orthogonal_and_of_length_root_model_and_the_same_each_time():
    found = probes(10, 23, seed=4)
    torch.testing.assert_close(found[:10] @ found[:10].T, 10 * torch.eye(10).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.square().sum(-1), torch.full((23,), 10.0).double())
    probes.cache_clear()
    assert torch.equal(probes(10, 23, seed=4), found)
    assert not torch.allclose(probes(10, 23, seed=5), found)


def test_images_of_directions_are_the_dense_products():
    _, _, jacobians = layer("gpt_oss")
    v = normal(3, MODEL, seed=5)
    dense = torch.stack([v @ jacobians.dense(e).T for e in range(EXPERTS)])
    torch.testing.assert_close(jacobians.along(v), dense, rtol=1e-12, atol=1e-12)


def test_hidden_order_and_scale_between_up_and_down_do_not_matter():
    _, _, j = layer()
    order, scale = torch.randperm(HIDDEN, generator=torch.Generator().manual_seed(0)), torch.rand(HIDDEN).double() + 0.5
    moved = MeanJacobians(
        j.gate[:, order],
        j.up[:, order] * scale[:, None],
        j.down[:, :, order] / scale,
        j.gate_slope[:, order] * scale,  # phi = silu(gate) up is linear in up, so its slope by gate scales with up
        j.up_slope[:, order],
    )
    torch.testing.assert_close(gram(moved), gram(j), rtol=1e-12, atol=1e-12)


def test_a_layer_is_read_alone():
    read = []

    class Slot:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            read.append(index)
            return normal(EXPERTS, HIDDEN, MODEL, seed=index)

    up_slope = normal(3, EXPERTS, HIDDEN)
    found = of_layer((None, Slot(), normal(3, EXPERTS, MODEL, HIDDEN)), (None, up_slope), 1)
    assert read == [1]
    assert torch.equal(found.up_slope, up_slope[1]) and found.gate is None
