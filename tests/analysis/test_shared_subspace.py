"""The subspace of a shared expert's inputs, which are all tokens: against numpy, and at planted distances."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from analysis.inference import evaluate
from analysis.manifolds.grassmann import random_angles
from analysis.measure import Inputs, get
from analysis.sampling import token_hash
from analysis.subspaces import row_counts
from tests.analysis.beside import EXPERTS, ask, side_of, wide_expert, with_shared
from tests.analysis.clouds import MODEL, ROWS, N, cloud, common, generator, routed, span


def axes_of(rows, weights, n):
    """Leading eigenvectors of the weighted covariance, by numpy."""
    values, vectors = np.linalg.eigh(np.cov(rows.T, aweights=weights, ddof=0))
    return vectors[:, values.argsort()[::-1][:n]]


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["scaled", "weighted", "plain"])
def test_the_shared_experts_subspace_is_that_of_all_tokens_at_its_weight(world, weighting):
    # No two of the 400 tokens share a hash, and the sample holds 512.
    batches, n = with_shared(world, lambda own: wide_expert(), lengths=(25,) * 16), 2
    side = side_of(world, batches, "grassmann_distance")
    found = ask("grassmann_distance", side, n=n, weighting=weighting).values
    rows = int(row_counts(side.routed_rows).min())
    for layer, batch in enumerate(batches):
        hashes, sets = token_hash(batch.prompts, batch.keys), []
        for index in range(EXPERTS + 1):
            chosen = (batch.indices == index) & batch.served
            mine = chosen.any(-1).nonzero()[:, 0] if index < EXPERTS else torch.arange(len(hashes))
            mine = mine[hashes[mine].argsort()][:rows]
            g = (batch.weights * chosen).sum(-1) if index < EXPERTS else batch.shared_weight
            x, g = batch.expert_input[mine].bfloat16().double().numpy(), g[mine].float().double().numpy()
            scaled = x * g[:, None] if weighting == "scaled" else x
            sets.append(axes_of(scaled, g if weighting == "weighted" else None, n))
        for index in range(EXPERTS):
            expected = np.linalg.norm(subspace_angles(sets[index], sets[-1]))
            assert found[layer, -1, index] == pytest.approx(expected, abs=1e-7)
            assert found[layer, index, -1] == found[layer, -1, index]
    assert (found[:, -1, -1] == 0).all()


def spans(clouds, everything, weights=None, **knobs):
    state, rows = routed(clouds), common(everything, torch.ones(len(everything)) if weights is None else weights, 8)
    shape = dataclasses.replace(state.shape, shared=8)
    states = {"routed_rows": dataclasses.replace(state, shape=shape), "common_rows": rows}
    return evaluate(get("grassmann_distance"), (Inputs(shape, states),), {"n": N, **knobs})


def test_distances_to_a_shared_expert_are_zero_in_one_span_and_the_largest_in_another():
    axes = torch.eye(MODEL, dtype=torch.float64)
    inside, outside = cloud(axes[:N], 1), cloud(axes[N : 2 * N], 2)
    values = spans([inside, outside], cloud(axes[:N], 3, rows=400), form="normalised").values[0]
    assert values[2, 0] == pytest.approx(0, abs=1e-11)
    assert values[2, 1] == pytest.approx(1, abs=1e-9)


def test_as_many_rows_of_a_shared_expert_are_used_as_of_the_others():
    clouds, everything = [cloud(span(e), e, noise=0.2) for e in range(2)], cloud(span(7), 3, rows=400, noise=0.2)
    fewer = spans(clouds, everything[:ROWS])
    found = spans(clouds, everything)
    assert found.facts["rows per expert"] == ROWS
    np.testing.assert_allclose(found.values, fewer.values, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_score_of_a_shared_expert_is_between_its_own_floor_and_chance():
    """It sees what expert 0 sees and not what expert 1 sees."""
    clouds = [cloud(span(e), e, noise=0.5, rows=240) for e in (0, 7)]
    found = spans(clouds, cloud(span(0), 9, noise=0.5, rows=480), form="score")
    assert abs(found.values[0, 2, 0]) < 0.1
    assert found.values[0, 2, 1] == pytest.approx(1, abs=0.15)
    assert found.values[0, 2, 2] == 0
    alone = evaluate(
        get("grassmann_distance"),
        (Inputs(routed(clouds).shape, {"routed_rows": routed(clouds), "common_rows": common(torch.zeros(1, MODEL))}),),
        {"n": N, "form": "score"},
    )
    np.testing.assert_allclose(found.values[:, :2, :2], alone.values, rtol=0, atol=1e-12)
    for fact in ("split-half floor", "mean over pairs", "rows per half"):
        assert found.facts[fact] == pytest.approx(alone.facts[fact], rel=1e-12), fact


def test_angles_with_a_shared_expert_are_means_over_as_many_unrelated_pairs_as_there_are_experts():
    """Pairs of uniformly random subspaces are independent two by two, also where they share one."""
    clouds = [cloud(span(e), e, noise=0.01) for e in range(9)]
    measure, shape = get("principal_angles"), dataclasses.replace(routed(clouds).shape, shared=8)
    states = (dataclasses.replace(routed(clouds), shape=shape), common(cloud(span(50), 9), torch.ones(ROWS), 8))
    knobs = measure.settle({"n": N, "pair": "shared"})
    chance, found = measure.null(*states, **knobs, generator=generator(1)), measure.function(*states, **knobs)
    assert found.facts["pairs"] == 9
    held = (chance.low <= found.values) & (found.values <= chance.high)
    assert held.float().mean() > 0.5
    one = random_angles(N, MODEL, 2000, generator(0)).std(0).mean()
    # Of a standard deviation by a thousand draws: 0.022 of it, so 0.1 is over four of its own.
    assert float((chance.high - chance.low).mean() / (2 * 1.96 * one / 3)) == pytest.approx(1, abs=0.1)


def test_no_weight_at_all_leaves_no_subspace():
    clouds = [cloud(span(e), e, noise=0.2) for e in range(2)]
    rows = common(cloud(span(7), 3), torch.zeros(ROWS), 8)
    shape = dataclasses.replace(routed(clouds).shape, shared=8)
    states = {"routed_rows": dataclasses.replace(routed(clouds), shape=shape), "common_rows": rows}
    found = evaluate(get("grassmann_distance"), (Inputs(shape, states),), {"n": N})
    assert np.isnan(found.values[0, 2]).all() and not np.isnan(found.values[0, :2, :2]).any()
    assert any(caveat.startswith("NaN: 1 of 3 experts") for caveat in found.caveats)
