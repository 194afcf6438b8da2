"""Planted coupling between router and experts, and every reading of the correlation against scipy."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from analysis.common_tokens import common_tokens
from analysis.gate_activity import ACTIVITIES, gate_activity
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.result import Reason
from analysis.score_gate import Question, mismatches, of_pairings, shuffles, token_points

SCORE_GATE = ("score_gate_pairs", "score_gate_tokens")


def asked(name, side, **knobs):
    return evaluate(get(name), (side,), knobs)


def activities(batch):
    x = batch.expert_input.double()
    every = [e.to(torch.float64) for e in batch.experts]
    return torch.stack([gate_activity(e, *e.preactivations(x)) for e in every], 1)


def side_of(world, change=lambda batch: batch, names=SCORE_GATE, weights=None, lengths=(20,) * 16):
    batches = [change(batch) for batch in world.layers(lengths=lengths)]
    return Inputs(batches[0].shape, {n: world.state_of(n, batches) for n in names}, weights or {}), batches


def selected(batch, rows):
    mask = torch.zeros(len(batch.keys), 6, dtype=torch.bool).scatter_(1, batch.indices, True)
    return mask[rows]


@pytest.mark.parametrize("activity", ACTIVITIES)
@pytest.mark.parametrize("score", ["logit", "probability"])
def test_pooled_over_the_layer_it_is_scipys_spearman(world, activity, score):
    side, batches = side_of(world)
    found = {
        pairs: asked("router_gate_correlation", side, activity=activity, score=score, pairs=pairs)
        for pairs in ("all", "selected")
    }
    for layer, batch in enumerate(batches):
        rows, _ = common_tokens(batch)
        s = (batch.logits if score == "logit" else batch.probabilities)[rows]
        a = activities(batch)[rows][..., ACTIVITIES.index(activity)].float()
        mask = selected(batch, rows)
        for pairs, (x, y) in {"all": (s.flatten(), a.flatten()), "selected": (s[mask], a[mask])}.items():
            expected = stats.spearmanr(x.numpy(), y.numpy())[0]
            assert found[pairs].values[layer] == pytest.approx(float(expected), abs=1e-9)
    assert found["selected"].facts["pairs"] == sum(2 * len(common_tokens(b)[0]) for b in batches)


@pytest.mark.parametrize("coefficient", ["spearman", "pearson", pytest.param("kendall", marks=pytest.mark.slow)])
def test_within_tokens_and_within_experts_it_is_the_mean_of_scipys(world, coefficient):
    side, batches = side_of(world)
    scipy = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}[coefficient]
    rows, _ = common_tokens(batches[1])
    s, a = batches[1].logits[rows].numpy(), activities(batches[1])[rows][..., 0].float().numpy()
    expected = {
        "token": np.mean([scipy(x, y)[0] for x, y in zip(s, a, strict=True)]),
        "expert": np.mean([scipy(x, y)[0] for x, y in zip(s.T, a.T, strict=True)]),
    }
    for pooled, value in expected.items():
        found = asked("router_gate_correlation", side, coefficient=coefficient, pairs="all", pooled=pooled)
        assert found.values[1] == pytest.approx(float(value), abs=1e-6)


def test_within_experts_over_selected_pairs_each_served_token_counts(world):
    side, batches = side_of(world)
    found, every = asked("router_gate_correlation", side, pooled="expert"), []
    for index in range(6):
        rows = ((batches[0].indices == index) & batches[0].served).any(-1)
        a = activities(batches[0])[rows][:, index, 0].float()
        every.append(stats.spearmanr(batches[0].logits[rows, index].numpy(), a.numpy())[0])
    assert found.values[0] == pytest.approx(float(np.mean(every)), abs=1e-9)
    assert found.facts["pairs"] == sum(int(b.served.sum()) for b in batches)


def scores_are_answers(batch):
    answers = activities(batch)[..., 0].float()
    return dataclasses.replace(batch, logits=answers, probabilities=answers.softmax(-1))


@pytest.mark.parametrize("pooled", ["layer", "token", "expert"])
@pytest.mark.parametrize("pairs", ["all", "selected"])
def test_a_router_that_reads_its_gates_correlates_perfectly_and_beyond_its_null(world, pairs, pooled):
    side, _ = side_of(world, scores_are_answers)
    if (pairs, pooled) == ("selected", "token"):  # two points a token are too few
        assert np.isnan(asked("router_gate_correlation", side, pairs=pairs, pooled=pooled).values).all()
        return
    found = asked("router_gate_correlation", side, pairs=pairs, pooled=pooled)
    np.testing.assert_allclose(found.values, 1, atol=1e-12)
    apart = asked("router_gate_correlation", side, pairs=pairs, pooled=pooled, control="mismatched")
    assert (apart.values > 0.4).all() and isinstance(apart.null, Reason)
    assert apart.facts["mean matched"] == pytest.approx(1)
    assert isinstance(found.null, Reason) == ((pairs, pooled) == ("selected", "expert"))
    assert isinstance(found.null, Reason) or (found.values > found.null.high).all() or pooled == "token"


def test_matched_minus_mismatched_is_the_mean_over_all_pairs_of_two_experts(world):
    side, batches = side_of(world)
    found = asked("router_gate_correlation", side, pairs="all", pooled="expert", control="mismatched")
    rows, _ = common_tokens(batches[2])
    s, a = batches[2].logits[rows].numpy(), activities(batches[2])[rows][..., 0].float().numpy()
    every = np.array([[stats.spearmanr(s[:, i], a[:, j])[0] for j in range(6)] for i in range(6)])
    same = np.eye(6, dtype=bool)
    assert found.values[2] == pytest.approx(every[same].mean() - every[~same].mean(), abs=1e-9)


def test_mismatches_meet_every_other_expert_once_and_renumbering_keeps_the_pairs(world):
    state = side_of(world)[0].score_gate_tokens
    seen = [(i, int(j)) for partner in mismatches(state, 0) for i, j in enumerate(partner)]
    assert sorted(seen) == sorted(itertools.permutations(range(6), 2))
    drawn = list(shuffles(state, 0, 300, torch.Generator().manual_seed(0)))
    assert all(sorted(p.tolist()) == list(range(6)) for p in drawn)
    own = np.mean([float((p == torch.arange(6)).double().mean()) for p in drawn])
    assert own == pytest.approx(1 / 6, abs=0.04)
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    moved = side_of(world, lambda batch: world.permute_experts(batch, order))[0].score_gate_tokens
    again = [(int(order[i]), int(order[j])) for i, j in seen[:6]]
    assert sorted(again) == sorted((i, int(j)) for i, j in enumerate(next(mismatches(moved, 0))))


def test_pairings_correlated_in_parts_are_those_correlated_one_by_one(world, monkeypatch):
    state = side_of(world)[0].score_gate_tokens
    partners = [*shuffles(state, 0, 7, torch.Generator().manual_seed(1))]
    monkeypatch.setattr("analysis.score_gate.AT_ONCE", 2 * int((state["block"][0] >= 0).sum()) * 6)
    for pairs, pooled in (("selected", "layer"), ("selected", "expert"), ("all", "token"), ("all", "expert")):
        question = Question("logit", "mean", pairs, pooled, "spearman", "input size")
        singly = [float(question.value(token_points(state, 0, question, p))) for p in partners]
        assert of_pairings(state, 0, question, partners).tolist() == pytest.approx(singly, abs=1e-12)


def test_a_correlation_that_is_only_the_size_of_x_is_taken_out(world):
    """Scores are |x|, and gates answer by |x|: all of it is shared with |x|."""

    def by_size(batch):
        stretch = torch.linspace(0.1, 10, len(batch.keys))[:, None]
        x = batch.expert_input / batch.expert_input.norm(dim=-1, keepdim=True) * stretch
        noise = torch.rand(len(x), 6, generator=torch.Generator().manual_seed(0)) * 0.2
        gate_in, up_in = world.preactivations(batch.experts, x, batch.indices, batch.served)
        parts = {"expert_input": x, "router_input": x, "gate_in": gate_in, "up_in": up_in}
        return dataclasses.replace(batch, logits=stretch + noise, **parts)

    side, _ = side_of(world, by_size)
    knobs = {"activity": "input_norm", "pairs": "all", "pooled": "expert"}
    plain = asked("router_gate_correlation", side, **knobs).values
    left = asked("router_gate_correlation", side, control="input size", **knobs).values
    assert (plain > 0.8).all() and (np.abs(left) < 0.2).all()


@pytest.mark.parametrize(
    ("inert", "plain", "acting", "said"),
    [
        (("token", {"control": "input size"}), {"control": "none"}, "layer", "Within a token"),
        (("expert", {"score": "excess probability"}), {"score": "probability"}, "token", "Within an expert"),
    ],
)
def test_a_knob_that_changes_nothing_says_so_and_is_silent_where_it_acts(inert, plain, acting, said, world):
    side, _ = side_of(world)
    pooled, asks = inert
    told, same, heard = (
        asked("router_gate_correlation", side, pairs="all", pooled=by, **knobs)
        for by, knobs in ((pooled, asks), (pooled, plain), (acting, asks))
    )
    np.testing.assert_allclose(told.values, same.values, rtol=0, atol=1e-12)
    assert [c.startswith(said) for c in told.caveats[1:]] == [True]
    assert len(same.caveats) == len(heard.caveats) == 1
    apart = asked("router_gate_correlation", side, pairs="all", pooled=acting, **plain)
    assert (np.abs(heard.values - apart.values) > 1e-4).any()


def test_hidden_scores_are_nan_with_a_reason(world):
    side, _ = side_of(world, lambda b: dataclasses.replace(b, logits=torch.full_like(b.logits, torch.nan)))
    for name in ("router_gate_correlation", "rank_profile"):
        found = asked(name, side)
        assert np.isnan(found.values).all() and found.caveats[-1].startswith("NaN: the router hides its scores")
    assert np.isfinite(asked("router_gate_correlation", side, score="probability").values).all()


def test_the_profile_is_the_mean_answer_at_each_rank(world):
    side, batches = side_of(world)
    found = asked("rank_profile", side, activity="norm").values
    rows, _ = common_tokens(batches[1])
    a = activities(batches[1])[rows][..., ACTIVITIES.index("norm")].float().double().numpy()
    order = np.argsort(-batches[1].logits[rows].numpy(), axis=-1)
    np.testing.assert_allclose(found[1], np.take_along_axis(a, order, -1).mean(0), rtol=1e-6)


def test_a_router_that_reads_its_gates_falls_with_rank(world):
    side, _ = side_of(world, scores_are_answers)
    found = asked("rank_profile", side)
    assert (np.diff(found.values, axis=-1) < 0).all()
    assert found.facts["rank correlation of rank and activation"] == pytest.approx(-1)
    assert found.facts["selected minus the rest"] > 0
    assert (found.values[:, 0] > found.null.high[:, 0]).all() and (found.values[:, -1] < found.null.low[:, -1]).all()


def centroid_side(world, rows, change=lambda batch: batch):
    return side_of(world, change, ("centroid_sums",), {"router_weight": rows})


def test_rows_that_are_centroids_point_at_them(world):
    side, batches = centroid_side(world, torch.zeros(3, 6, 5))
    for kind in ("plain", "weighted", "centred"):
        rows = []
        for batch in batches:
            x, layer = batch.router_input.double(), []
            for index in range(6):
                chosen = (batch.indices == index) & batch.served
                g = (batch.weights * chosen).sum(-1).double() if kind == "weighted" else chosen.any(-1).double()
                layer.append((g[:, None] * x).sum(0) / g.sum() - (x.mean(0) if kind == "centred" else 0))
            rows.append(torch.stack(layer))
        found = asked(
            "router_centroid_cosine",
            dataclasses.replace(side, weights={"router_weight": 3 * torch.stack(rows)}),
            centroid=kind,
        )
        np.testing.assert_allclose(found.values[:, range(6), range(6)], 1, atol=1e-9)
        assert found.facts["mean matched"] == pytest.approx(1) and found.facts["mean mismatched"] < 1
        assert found.facts["rows nearest to their own centroid"] == 1
        unit = [row / row.norm(dim=-1, keepdim=True) for row in rows]
        np.testing.assert_allclose(found.values[2], (unit[2] @ unit[2].T).numpy(), atol=1e-9)


def test_an_expert_without_tokens_has_no_centroid_and_a_centred_row_ignores_what_rows_share(world):
    rows = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    dead = lambda b: dataclasses.replace(b, served=b.served & (b.indices != 2))  # noqa: E731
    side, _ = centroid_side(world, rows, dead)
    found = asked("router_centroid_cosine", side)
    assert np.isnan(found.values[:, :, 2]).all() and found.facts["pairs"] == 3 * 30
    assert any(c.startswith("NaN: 3 expert(s) without tokens") for c in found.caveats)
    moved = dataclasses.replace(side, weights={"router_weight": rows + 7})
    one, other = (asked("router_centroid_cosine", s, rows="centred").values for s in (side, moved))
    np.testing.assert_allclose(one, other, atol=1e-5)


GRADIENTS = ("gradient_rows", "prompt_counts")


def gradient_side(world, change=lambda batch: batch):
    batches = [change(batch) for batch in world.layers(lengths=(20,) * 16)]
    states = {"gradient_rows": world.state_of("gradient_rows", batches)}
    states["prompt_counts"] = world.state_of("prompt_counts", [world.routes(lengths=(20,) * 16)])
    return Inputs(batches[0].shape, states, {}), batches


def test_interference_is_the_ratio_of_gradients_that_autograd_finds(world):
    side, batches = gradient_side(world)
    loads = side.prompt_counts["selected"].sum(0).double()
    loads = loads / loads.sum(-1, keepdim=True)
    found = {term: asked("gradient_interference", side, term=term, coefficient=0.3) for term in ("balance", "z")}
    for layer, batch in enumerate(batches):
        x, logits = batch.router_input.double(), batch.logits.double()
        rows = torch.zeros(6, 5, dtype=torch.float64, requires_grad=True)
        moved = logits + x @ rows.T
        losses = {
            "balance": 0.3 * 6 * (loads[layer] * moved.softmax(-1).mean(0)).sum(),
            "z": 0.3 * torch.logsumexp(moved, -1).square().mean(),
        }
        task = batch.task_gradient.double().T @ x / len(x)
        for term, loss in losses.items():
            (pull,) = torch.autograd.grad(loss, rows, retain_graph=True)
            assert found[term].values[layer] == pytest.approx(float(pull.norm() / task.norm()), rel=1e-5)


def test_energy_off_the_selection_is_counted_and_balanced_loads_do_not_pull(world):
    def renormalised(batch):
        chosen = torch.zeros_like(batch.logits).scatter_(1, batch.indices, 1.0)
        return dataclasses.replace(batch, task_gradient=batch.task_gradient * chosen)

    side, batches = gradient_side(world, renormalised)
    assert asked("gradient_interference", side).facts["task energy on experts not selected"] == 0
    side, batches = gradient_side(world)
    mask = [torch.zeros(len(b.keys), 6).scatter_(1, b.indices, 1.0) for b in batches]
    off = [
        float(((1 - m) * b.task_gradient).square().sum() / b.task_gradient.square().sum())
        for m, b in zip(mask, batches, strict=True)
    ]
    fact = asked("gradient_interference", side).facts["task energy on experts not selected"]
    assert fact == pytest.approx(np.mean(off), rel=1e-6)
    counts = side.prompt_counts
    level = dataclasses.replace(counts, arrays={**counts.arrays, "selected": torch.ones_like(counts["selected"])})
    even = dataclasses.replace(side, states={**side.states, "prompt_counts": level})
    # Probabilities are kept in float32 and sum to 1 to its precision.
    np.testing.assert_allclose(asked("gradient_interference", even).values, 0, atol=1e-9)


def test_a_task_that_does_not_pull_leaves_no_ratio(world):
    side, _ = gradient_side(world, lambda b: dataclasses.replace(b, task_gradient=torch.zeros_like(b.task_gradient)))
    found = asked("gradient_interference", side)
    assert np.isnan(found.values).all()
    assert any(caveat.startswith("NaN: ") for caveat in found.caveats)
