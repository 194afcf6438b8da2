"""Experts as weights and what router rows excite in them: double loops, closed forms and planted experts."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.measure import Inputs, get

LAYERS, EXPERTS, HIDDEN, MODEL = 2, 5, 7, 11


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    return {
        "router_weight": normal(LAYERS, EXPERTS, MODEL),
        "gate_weight": normal(LAYERS, EXPERTS, HIDDEN, MODEL),
        "up_weight": normal(LAYERS, EXPERTS, HIDDEN, MODEL),
        "down_weight": normal(LAYERS, EXPERTS, MODEL, HIDDEN),
    }


def asked(world, name, slots, **knobs):
    layers, experts, _, model = slots["gate_weight"].shape
    labels = tuple(map(str, range(layers)))
    shape = dataclasses.replace(world.SHAPE, layers=labels, experts=experts, model=model)
    return evaluate(get(name), (Inputs(shape, {}, {k: slots[k] for k in get(name).reads if k in slots}),), knobs)


def double_loop(rows, matrices):
    return np.array([[float((w @ r).norm()) for w in matrices] for r in rows])


@pytest.mark.parametrize("matrix", ["gate", "up", "down"])
def test_response_is_the_double_loop_over_rows_and_experts(matrix, world):
    slots = weights()
    values = asked(world, "router_gate_response", slots, matrix=matrix).values
    for layer in range(LAYERS):
        matrices = slots[f"{matrix}_weight"][layer]
        matrices = matrices.mT if matrix == "down" else matrices
        rows = slots["router_weight"][layer]
        sizes = matrices.flatten(1).norm(dim=-1).numpy()
        unit = rows / rows.norm(dim=-1, keepdim=True)
        np.testing.assert_allclose(values[layer], MODEL * (double_loop(unit, matrices) / sizes) ** 2, rtol=1e-12)


def test_an_isotropic_expert_answers_to_every_direction_alike(world):
    """W'W proportional to the identity: K2 is 1 whatever the row."""
    slots = weights()
    turned, _ = torch.linalg.qr(torch.randn(LAYERS, EXPERTS, MODEL, MODEL, dtype=torch.float64, generator=_seed(3)))
    slots["gate_weight"] = 3 * turned
    result = asked(world, "router_gate_response", slots)
    np.testing.assert_allclose(result.values, np.ones((LAYERS, EXPERTS, EXPERTS)), rtol=1e-12)
    assert result.facts["mean diagonal"] == pytest.approx(result.facts["mean off the diagonal"])
    np.testing.assert_allclose([result.null.low, result.null.high], 1, rtol=1e-12)


def test_experts_that_look_along_their_own_row_recognise_themselves(world):
    """W_j of rank one along r_j, orthogonal rows: K2 is d on the diagonal and 0 off it."""
    slots = weights()
    slots["router_weight"] = torch.eye(MODEL, dtype=torch.float64)[:EXPERTS].expand(LAYERS, -1, -1)
    slots["gate_weight"] = slots["router_weight"][:, :, None].expand(-1, -1, HIDDEN, -1).contiguous()
    result = asked(world, "router_gate_response", slots)
    np.testing.assert_allclose(result.values, np.broadcast_to(MODEL * np.eye(EXPERTS), result.values.shape), atol=1e-12)
    assert result.facts["self-recognition of rows"] == result.facts["self-recognition of experts"] == 1
    assert result.facts["chance of self-recognition"] == 1 / EXPERTS
    assert result.facts["pairs"] == LAYERS * EXPERTS * (EXPERTS - 1)
    # A control that looks elsewhere: the other matrices are random still.
    assert asked(world, "router_gate_response", slots, matrix="up").facts["mean diagonal"] < 3


def test_rows_may_find_their_experts_while_experts_do_not_find_their_rows(world):
    """Expert 0 sees direction 0 alone; expert 1 sees it three times as strongly as its own direction 1."""
    gate = torch.tensor([[[1.0, 0, 0], [0, 0, 0]], [[3, 0, 0], [0, 1, 0]]]).double()[None]
    slots = {"router_weight": torch.eye(3).double()[None, :2], "gate_weight": gate, "up_weight": gate}
    result = asked(world, "router_gate_response", slots | {"down_weight": gate.mT})
    np.testing.assert_allclose(result.values[0], [[3, 2.7], [0, 0.3]], rtol=1e-12)
    assert result.facts["self-recognition of rows"] == 1
    assert result.facts["self-recognition of experts"] == 0.5


def test_unrelated_rows_recognise_experts_at_chance(world):
    found = [asked(world, "router_gate_response", weights(seed)).facts for seed in range(60)]
    rate = np.mean([facts["self-recognition of rows"] for facts in found])
    assert rate == pytest.approx(1 / EXPERTS, abs=4 * math.sqrt(0.16 / (60 * LAYERS * EXPERTS)))
    assert np.mean([facts["mean diagonal"] for facts in found]) == pytest.approx(1, abs=0.05)


def test_a_row_shared_by_all_changes_raw_responses_and_not_centred_ones(world):
    slots = weights()
    moved = slots | {"router_weight": slots["router_weight"] + 4}
    raw, centred = (
        [asked(world, "router_gate_response", s, form=form).values for s in (slots, moved)]
        for form in ("raw", "centred")
    )
    assert np.abs(raw[0] - raw[1]).max() > 0.1
    np.testing.assert_allclose(centred[0], centred[1], rtol=1e-9)


@pytest.mark.parametrize("name", ["router_gate_response", "expert_router_coupling", "weight_similarity"])
def test_an_expert_of_zeros_is_nan_or_silent_and_says_so(name, world):
    slots = weights()
    for part in ("gate_weight", "up_weight", "down_weight"):
        slots[part][1, 2] = 0
    result = asked(world, name, slots)
    if name == "expert_router_coupling":
        assert (result.values[1, :, 2] == 0).all()
        return
    assert np.isnan(result.values[1, :, 2]).all()
    assert not np.isnan(result.values[0]).any()
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


def test_coupling_is_the_norm_of_the_gate_and_its_loss_that_of_the_paper(world):
    slots = weights()
    result = asked(world, "expert_router_coupling", slots)
    m = np.stack([double_loop(slots["router_weight"][n], slots["gate_weight"][n]) for n in range(LAYERS)])
    np.testing.assert_allclose(result.values, m, rtol=1e-12)
    for alpha in (0.0, 0.5, 1.0):
        loss = 0.0
        for layer in m:
            for i in range(EXPERTS):
                for j in range(EXPERTS):
                    if i != j:
                        loss += max(layer[i, j] - alpha * layer[i, i], 0) + max(layer[j, i] - alpha * layer[i, i], 0)
        found = asked(world, "expert_router_coupling", slots, alpha=alpha).facts["loss"]
        assert found == pytest.approx(loss / (LAYERS * EXPERTS**2), rel=1e-12)


def test_eps_is_half_the_way_to_the_nearest_row(world):
    slots = weights()
    slots["router_weight"] = torch.tensor([[[4.0, 0], [0, 3], [0, 1], [8, 0], [8, 0]]]).double()
    slots["gate_weight"] = torch.ones(1, 5, 3, 2).double()
    facts = asked(world, "expert_router_coupling", slots).facts
    rooms = [4 / 8, 2 / 6, 2 / 2, 0, 0]
    assert facts["eps, mean"] == pytest.approx(np.mean(rooms))
    assert facts["eps, least"] == 0
    slots["router_weight"][0, 0] = 0
    rooms = [2 / 6, 1 / 2, 0, 0]
    assert asked(world, "expert_router_coupling", slots).facts["eps, mean"] == pytest.approx(np.mean(rooms))


def test_a_coupling_that_is_nan_names_the_weight_behind_it(world):
    """A row of zeros is no such weight: its answer is 0, and it is only left out of eps."""
    slots = weights()
    slots["router_weight"][0, 1] = 0
    result = asked(world, "expert_router_coupling", slots)
    assert (result.values[0, 1] == 0).all() and not np.isnan(result.values).any()
    assert result.caveats[1:] == ("eps leaves out 1 router row(s) of zeros: they have no size to measure it by.",)

    for broken in (float("nan"), float("inf")):
        slots = weights()
        whole = asked(world, "expert_router_coupling", slots)
        slots["router_weight"][0, 1, 0] = broken
        row = asked(world, "expert_router_coupling", slots)
        assert row.caveats[1:] == ("NaN: 1 router row(s) hold a number that is not finite.",)
        slots["router_weight"][0, 1, 0] = 1
        slots["gate_weight"][1, 3, 0, 0] = broken
        gate = asked(world, "expert_router_coupling", slots)
        assert gate.caveats[1:] == ("NaN: 1 gate matrices hold a number that is not finite.",)
        assert np.argwhere(np.isnan(row.values)).tolist() == [[0, 1, expert] for expert in range(EXPERTS)]
        assert np.argwhere(np.isnan(gate.values)).tolist() == [[1, expert, 3] for expert in range(EXPERTS)]
        np.testing.assert_array_equal(row.values[1], whole.values[1])
        assert np.isfinite([row.facts["eps, mean"], row.facts["loss"], gate.facts["own row strongest"]]).all()


def test_coupled_experts_cost_nothing_and_are_strongest_on_the_diagonal(world):
    slots = weights()
    slots["router_weight"] = torch.eye(MODEL, dtype=torch.float64)[:EXPERTS].expand(LAYERS, -1, -1)
    slots["gate_weight"] = slots["router_weight"][:, :, None].expand(-1, -1, HIDDEN, -1).contiguous()
    result = asked(world, "expert_router_coupling", slots)
    assert result.facts["loss"] == 0
    assert result.facts["own row strongest"] == result.facts["own expert strongest"] == 1
    assert (
        result.values[:, range(EXPERTS), range(EXPERTS)] > result.null.high[:, range(EXPERTS), range(EXPERTS)]
    ).all()


def test_a_negative_alpha_is_refused(world):
    with pytest.raises(BadKnob, match=r"'alpha' is -1\.0; it takes a number, 0 to"):
        asked(world, "expert_router_coupling", weights(), alpha=-1.0)


@pytest.mark.parametrize("matrix", ["gate", "up", "down", "all"])
@pytest.mark.parametrize("minus_mean", [False, True])
def test_weight_similarity_is_the_cosine_of_long_vectors(matrix, minus_mean, world):
    slots = weights()
    parts = ["gate", "up", "down"] if matrix == "all" else [matrix]
    values = asked(world, "weight_similarity", slots, matrix=matrix, minus_mean=minus_mean).values
    for layer in range(LAYERS):
        long = torch.cat([slots[f"{part}_weight"][layer].flatten(1) for part in parts], -1)
        long = long - long.mean(0) if minus_mean else long
        expected = torch.nn.functional.cosine_similarity(long[:, None], long[None], dim=-1)
        np.testing.assert_allclose(values[layer], expected, atol=1e-12)


def test_pieces_give_what_the_whole_gives(world, monkeypatch):
    import analysis.measures.weight_similarity as module

    whole = asked(world, "weight_similarity", weights(), minus_mean=True).values
    monkeypatch.setattr(module, "CHUNK", 2 * EXPERTS * MODEL)
    np.testing.assert_allclose(asked(world, "weight_similarity", weights(), minus_mean=True).values, whole, atol=1e-12)


def test_a_duplicated_expert_is_alike_and_a_reordered_one_is_not(world):
    slots = weights()
    order = torch.randperm(HIDDEN, generator=_seed(0))
    for part in ("gate_weight", "up_weight"):
        slots[part][:, 1], slots[part][:, 2] = slots[part][:, 0], slots[part][:, 0, order]
    slots["down_weight"][:, 1], slots["down_weight"][:, 2] = (
        slots["down_weight"][:, 0],
        slots["down_weight"][:, 0][..., order],
    )
    for minus_mean in (False, True):
        result = asked(world, "weight_similarity", slots, minus_mean=minus_mean)
        np.testing.assert_allclose(result.values[:, 0, 1], 1, atol=1e-12)
        assert (result.values[:, 0, 2] < 0.9).all()
        assert result.facts["largest"] == pytest.approx(1)


def test_upcycled_copies_are_alike_until_the_mean_expert_is_taken_away(world):
    """Parent of size 1, differences of size 0.2: raw 1 / 1.04, without the mean -1 / (E - 1)."""
    generator, size = _seed(4), (1, 8, 30, 40)
    normal = lambda: torch.randn(size, generator=generator, dtype=torch.float64)  # noqa: E731
    slots = {"router_weight": torch.zeros(1, 8, 40).double()}
    for part in ("gate_weight", "up_weight", "down_weight"):
        slots[part] = normal()[:, :1] + 0.2 * normal()
    slots["down_weight"] = slots["down_weight"].mT.contiguous()
    raw, delta = (asked(world, "weight_similarity", slots, minus_mean=m) for m in (False, True))
    assert raw.facts["mean over pairs"] == pytest.approx(1 / 1.04, abs=0.005)
    assert delta.facts["mean over pairs"] == pytest.approx(-1 / 7, abs=0.005)
    off = ~np.eye(8, dtype=bool)
    inside = (delta.null.low[off] <= delta.values[0][off]) & (delta.values[0][off] <= delta.null.high[off])
    assert inside.mean() > 0.85
    assert (raw.values[0][off] > raw.null.high[off]).all()


def test_random_experts_scatter_by_one_over_the_root_of_their_numbers(world):
    result = asked(world, "weight_similarity", weights())
    size = 3 * HIDDEN * MODEL
    assert result.facts["1 / root of the numbers compared"] == pytest.approx(size**-0.5)
    assert result.null.high[0, 1] == pytest.approx(1.96 / math.sqrt(size), rel=0.03)
    assert result.null.mean[0, 1] == pytest.approx(0, abs=3e-3)


def test_identical_experts_have_no_difference_from_their_mean(world):
    slots = {k: v[:, :1].expand_as(v).contiguous() * 0.1 for k, v in weights().items()}
    result = asked(world, "weight_similarity", slots, minus_mean=True)
    assert np.isnan(result.values).all()
    assert any(caveat.startswith("NaN: ") for caveat in result.caveats)


def _seed(seed):
    return torch.Generator().manual_seed(seed)
