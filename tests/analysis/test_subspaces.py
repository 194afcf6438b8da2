"""Planted subspaces, through statistic, measure and framework: what each distance, overlap and spectrum must say."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.errors import BadKnob
from analysis.inference import evaluate
from analysis.linalg import orthonormal
from analysis.measure import Inputs, get
from analysis.result import Reason
from analysis.slots import Prompts, Shape, text_digest
from analysis.spec import EMPTY
from analysis.statistic import State
from analysis.subspaces import cut, split_half

MODEL, N, ROWS = 40, 4, 120
PROMPTS = tuple(f"p{i}" for i in range(32))
HELD = Prompts(PROMPTS, tuple(map(text_digest, PROMPTS)), ("all",) * 32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cloud(axes, seed, rows=ROWS, noise=0.0):
    """Rows that vary along these axes, 5, 4, 3, ... times as much as `noise` in all directions."""
    g = generator(seed)
    scale = torch.arange(len(axes) + 1, 1, -1, dtype=torch.float64)
    x = (torch.randn(rows, len(axes), dtype=torch.float64, generator=g) * scale) @ axes
    return x + noise * torch.randn(rows, axes.shape[1], dtype=torch.float64, generator=g) + 3


def routed(clouds, weights=None, blocks=None):
    """A state of one layer with these rows per expert; NaN places where an expert has fewer."""
    most, experts = max(map(len, clouds)), len(clouds)
    shape = Shape(("0",), experts, 1, clouds[0].shape[1], 8)
    hashes = torch.full((1, experts, most), EMPTY)
    block = torch.full((1, experts, most), -1)
    x = torch.full((1, experts, most, shape.model), torch.nan, dtype=torch.float64)
    g = torch.full((1, experts, most), torch.nan)
    held = torch.tensor(HELD.blocks)
    for e, rows in enumerate(clouds):
        hashes[0, e, : len(rows)] = torch.arange(len(rows)) * experts + e
        block[0, e, : len(rows)] = held[torch.arange(len(rows)) % 32] if blocks is None else blocks[e]
        x[0, e, : len(rows)] = rows
        g[0, e, : len(rows)] = 1.0 if weights is None else weights[e].float()
    return State("routed_rows", shape, HELD, {"hash": hashes, "block": block, "weight": g, "input": x})


def ask(name, state, **knobs):
    return evaluate(get(name), (Inputs(state.shape, {"routed_rows": state}),), {"n": N, **knobs})


def span(seed, n=N, model=MODEL):
    return orthonormal(torch.randn(n, model, dtype=torch.float64, generator=generator(seed)))


def rotation(seed, size):
    return orthonormal(torch.randn(size, size, dtype=torch.float64, generator=generator(seed)))


MEASURES = ("grassmann_distance", "subspace_overlap", "principal_angles")


def test_identical_experts_are_at_no_distance():
    same = cloud(span(0), 1, noise=0.1)
    state = routed([same, same, cloud(span(5), 2, noise=0.1)])
    assert ask("grassmann_distance", state).values[0, 0, 1] < 1e-12
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(1, abs=1e-12)
    assert ask("principal_angles", state, pair="nearest").values.max() < 1e-12


def test_the_same_directions_in_another_basis_are_the_same_subspace():
    """Rows mixed within their span, so that axes and variances change and the subspace does not."""
    axes = span(0)
    first, second = cloud(axes, 1), cloud(rotation(3, N) @ axes, 2)
    state = routed([first, second])
    assert ask("grassmann_distance", state).values[0, 0, 1] < 1e-11
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(1, abs=1e-12)


def test_rotating_all_inputs_changes_nothing():
    clouds = [cloud(span(e), e, noise=0.3) for e in range(4)]
    turn = rotation(9, MODEL)
    for name in MEASURES:
        before, after = ask(name, routed(clouds)), ask(name, routed([x @ turn for x in clouds]))
        np.testing.assert_allclose(after.values, before.values, rtol=0, atol=1e-9, err_msg=name)


def test_a_rotated_copy_is_as_far_as_the_rotation_takes_it():
    axes, angle = torch.eye(MODEL, dtype=torch.float64), 0.4
    tilted = math.cos(angle) * axes[:N] + math.sin(angle) * axes[N : 2 * N]
    state = routed([cloud(axes[:N], 1), cloud(tilted, 2)])
    assert ask("grassmann_distance", state).values[0, 0, 1] == pytest.approx(math.sqrt(N) * angle, abs=1e-9)
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(math.cos(angle) ** 2, abs=1e-9)
    np.testing.assert_allclose(ask("principal_angles", state).values[0], [angle] * N, atol=1e-9)


def test_disjoint_experts_are_at_the_maximum():
    axes = torch.eye(MODEL, dtype=torch.float64)
    state = routed([cloud(axes[:N], 1), cloud(axes[N : 2 * N], 2)])
    distance = ask("grassmann_distance", state).values[0, 0, 1]
    assert distance**2 == pytest.approx(N * math.pi**2 / 4, abs=1e-9)
    assert ask("grassmann_distance", state, form="normalised").values[0, 0, 1] == pytest.approx(1, abs=1e-9)
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(0, abs=1e-12)


def test_nested_experts_share_what_the_smaller_has():
    """Two axes in common, two orthogonal: half the overlap, and two right angles."""
    axes = torch.eye(MODEL, dtype=torch.float64)
    state = routed([cloud(axes[:4], 1), cloud(axes[[0, 1, 10, 11]], 2)])
    assert ask("subspace_overlap", state).values[0, 0, 1] == pytest.approx(0.5, abs=1e-12)
    assert ask("grassmann_distance", state).values[0, 0, 1] == pytest.approx(math.pi / 2 * math.sqrt(2), abs=1e-9)
    angles = ask("principal_angles", state).values[0]
    np.testing.assert_allclose(angles, [0, 0, math.pi / 2, math.pi / 2], atol=1e-9)


def test_a_collapsed_expert_has_no_subspace_and_harms_no_other():
    whole = [cloud(span(e), e, noise=0.2) for e in range(3)]
    still = torch.ones(ROWS, MODEL, dtype=torch.float64)
    for name in ("grassmann_distance", "subspace_overlap"):
        before, after = ask(name, routed(whole)), ask(name, routed([*whole, still]))
        assert np.isnan(after.values[0, 3]).all() and np.isnan(after.values[0, :, 3]).all(), name
        np.testing.assert_allclose(after.values[0, :3, :3], before.values[0], rtol=0, atol=1e-12, err_msg=name)
        assert any(caveat.startswith("NaN: 1 of 4 experts") for caveat in after.caveats)
        assert after.facts["pairs"] == 3


def test_a_dead_expert_and_one_of_few_rows_have_no_subspace():
    clouds = [cloud(span(e), e, noise=0.2) for e in range(3)]
    state = routed([*clouds, clouds[0][:0], clouds[1][:N]])
    result = ask("grassmann_distance", state, matched=False)
    assert np.isnan(result.values[0, 3:]).all() and not np.isnan(result.values[0, :3, :3]).any()
    assert any(f"2 of 5 experts have fewer than {N + 1} sampled rows" in c for c in result.caveats)
    assert result.facts["pairs"] == 3


def test_a_layer_without_any_rows_has_no_numbers():
    empty = torch.zeros(0, MODEL, dtype=torch.float64)
    state = routed([empty, empty, empty])
    for name in MEASURES:
        result = ask(name, state)
        off = result.values[0][~np.eye(3, dtype=bool)] if name != "principal_angles" else result.values
        assert np.isnan(off).all(), name
        assert any(caveat.startswith("NaN: 3 of 3 experts") for caveat in result.caveats), name


def test_all_experts_give_as_many_rows_as_the_smallest_that_has_enough():
    clouds = [cloud(span(e), e, rows=r, noise=0.2) for e, r in enumerate((120, 90, 30, 6))]
    result = ask("grassmann_distance", routed(clouds))
    assert result.facts["rows per expert"] == 30
    assert np.isnan(result.values[0, 3, 0]) and not np.isnan(result.values[0, 2, 0])
    fewer = ask("grassmann_distance", routed([x[:30] for x in clouds[:3]]))
    np.testing.assert_allclose(result.values[0, :3, :3], fewer.values[0], rtol=0, atol=1e-12)
    assert ask("grassmann_distance", routed(clouds), matched=False).facts["rows per expert"] == "5 to 120"


def test_a_larger_subspace_than_half_of_the_space_is_cut():
    size = cut(torch.full((1, 3), 100), 30, 40, True)
    assert (size.axes, size.rows, size.least) == (20, 100, 100)
    result = ask("subspace_overlap", routed([cloud(span(e, 6), e, noise=1) for e in range(2)]), n=30)
    assert any("Only 20 of 30 axes" in caveat for caveat in result.caveats)


@pytest.mark.parametrize("name", MEASURES)
def test_a_subspace_has_at_least_one_axis(name):
    with pytest.raises(BadKnob, match="n=0"):
        ask(name, routed([cloud(span(e), e) for e in range(2)]), n=0)


def test_weightings_are_three_different_analyses():
    """Weights that grow along one axis: g x stretches along it, counting x g times does so less, leaving g out not."""
    x = cloud(span(0, 8), 1, rows=200, noise=0.1)
    g = torch.rand(200, dtype=torch.float64, generator=generator(4)).float().double()
    state = routed([x, x], [g, g])
    counted = np.cov(x.numpy().T, aweights=g.numpy())
    for weighting, covariance in [
        ("plain", np.cov(x.numpy().T)),
        ("scaled", np.cov((x * g[:, None]).numpy().T)),
        ("weighted", counted),
    ]:
        values = np.linalg.eigvalsh(covariance)[::-1]
        mixed = {"routed_rows": state, "common_rows": common(x), "expert_rows": outputs([x, x])}
        found = evaluate(get("routed_spectrum"), (Inputs(state.shape, mixed),), {"n": N, "weighting": weighting})
        assert found.values[0, 0] == pytest.approx(values[:N].sum() / values.sum(), rel=1e-9), weighting


def test_the_floor_and_the_score_tell_sampling_from_structure():
    """Experts 0 and 1 see the same distribution, expert 2 another: only it scores."""
    axes = span(0, N)
    same = [cloud(axes, seed, noise=0.5, rows=240) for seed in (1, 2)]
    other = cloud(span(7, N), 3, noise=0.5, rows=240)
    state = routed([*same, other])
    raw, score = ask("grassmann_distance", state), ask("grassmann_distance", state, form="score")
    assert raw.values[0, 0, 1] > 0.1
    assert abs(score.values[0, 0, 1]) < 0.1
    assert score.values[0, 0, 2] == pytest.approx(1, abs=0.15)
    assert raw.facts["split-half floor"] < raw.values[0, 0, 2] < raw.facts["random"] + 0.4
    assert 0.4 < raw.facts["score between"] < 0.8
    split = split_half(state, N, "scaled", lambda angles: angles.square().sum(-1).sqrt())
    assert float(split.within.mean()) == pytest.approx(raw.facts["split-half floor"], rel=1e-12)


def test_halves_share_no_prompt():
    from analysis.subspaces import halves

    first, second = halves(routed([cloud(span(0), 1)]))
    assert not set(first) & set(second) and set(first) | set(second) == set(HELD.blocks)


def test_without_structure_there_is_no_score():
    round_ones = [torch.randn(ROWS, 8, dtype=torch.float64, generator=generator(e)) for e in range(4)]
    result = ask("grassmann_distance", routed(round_ones), form="score")
    assert np.isnan(result.values[0, 0, 1:]).any()
    assert any("two halves of an expert's tokens" in caveat for caveat in result.caveats)


def test_unrelated_experts_fall_into_the_band():
    clouds = [cloud(span(e), e, noise=0.05) for e in range(12)]
    for name in ("grassmann_distance", "subspace_overlap"):
        result = ask(name, routed(clouds))
        first, second = np.triu_indices(12, 1)
        values = result.values[0, first, second]
        low, high = (
            np.broadcast_to(b, result.values.shape)[0, first, second] for b in (result.null.low, result.null.high)
        )
        assert 0.88 < ((low <= values) & (values <= high)).mean(), name
        assert values.mean() == pytest.approx(np.broadcast_to(result.null.mean, (1, 12, 12))[0, 0, 1], rel=0.03), name
    assert ask("subspace_overlap", routed(clouds)).null.mean[0, 1] == pytest.approx(N / MODEL)
    assert isinstance(ask("principal_angles", routed(clouds), pair="farthest").null, Reason)


def test_the_nearest_and_the_farthest_pair_bracket_the_mean():
    clouds = [cloud(span(e), e, noise=0.05) for e in range(5)]
    distances = ask("grassmann_distance", routed(clouds)).values[0][np.triu_indices(5, 1)]
    for pair, expected in (("nearest", distances.min()), ("farthest", distances.max())):
        angles = ask("principal_angles", routed(clouds), pair=pair).values[0]
        assert np.sqrt((angles**2).sum()) == pytest.approx(expected, abs=1e-12)
        assert (np.diff(angles) >= 0).all()


def common(rows):
    shape = Shape(("0",), 2, 1, rows.shape[1], 8)
    arrays = {
        "hash": torch.arange(len(rows))[None],
        "block": torch.tensor(HELD.blocks)[torch.arange(len(rows)) % 32][None],
    }
    return State("common_rows", shape, HELD, {**arrays, "input": rows[None]})


def outputs(experts, shared=None):
    """What experts gave for the same tokens."""
    state = common(experts[0])
    output = torch.stack(experts, 1)[None]
    own = torch.full_like(output[:, :, 0], torch.nan) if shared is None else shared[None]
    shape = dataclasses.replace(state.shape, experts=len(experts))
    return State("expert_rows", shape, HELD, {**state.arrays, "output": output, "shared": own})


def spectrum(clouds, everything=None, given=None, shared=None, **knobs):
    state = routed(clouds)
    everything = torch.cat(clouds) if everything is None else everything
    states = {"routed_rows": state, "common_rows": common(everything), "expert_rows": outputs(given or clouds, shared)}
    return evaluate(get("routed_spectrum"), (Inputs(state.shape, states),), {"n": N, **knobs})


def test_spectra_of_known_variances():
    """Variances 4, 4, 1, 1 of exactly orthogonal columns: one axis has .4 of them, the participation is 100/34."""
    columns = orthonormal(torch.cat([torch.ones(1, 64), torch.randn(4, 64, generator=generator())]).double())[1:]
    x = columns.T * 8 * torch.tensor([2.0, 2.0, 1.0, 1.0], dtype=torch.float64) @ torch.eye(4, 20, dtype=torch.float64)
    p = np.array([0.4, 0.4, 0.1, 0.1])
    for quantity, n, expected in [
        ("explained", 1, 0.4),
        ("explained", 3, 0.9),
        ("participation", 1, 100 / 34),
        ("entropy_rank", 1, float(np.exp(-(p * np.log(p)).sum()))),
    ]:
        for of in ("inputs", "outputs"):
            found = spectrum([x, x], quantity=quantity, n=n, of=of)
            np.testing.assert_allclose(found.values, expected, rtol=1e-9, err_msg=f"{quantity} {of}")


def test_an_expert_of_few_directions_leaves_the_band_of_blind_routing():
    narrow = cloud(span(0, 3), 1, noise=0.3)
    wide = [cloud(span(e, 12), e, noise=0.3) for e in range(2, 6)]
    result = spectrum([narrow, *wide], quantity="participation")
    low = np.broadcast_to(result.null.low, result.values.shape)
    assert result.values[0, 0] < low[0, 0] - 1
    assert result.facts["all tokens"] == pytest.approx(float(np.mean(result.null.mean)))
    assert isinstance(spectrum([narrow, narrow], of="outputs").null, Reason)
    assert isinstance(spectrum([narrow, narrow], matched=False).null, Reason)


def test_a_collapsed_expert_has_no_spectrum_and_a_duplicate_the_same():
    x = cloud(span(0, 6), 1, noise=0.1)
    found = spectrum([x, x, torch.ones_like(x)])
    assert found.values[0, 0] == found.values[0, 1] and np.isnan(found.values[0, 2])
    assert any("all the same" in caveat for caveat in found.caveats)
    given = spectrum([x, x], given=[x, torch.ones_like(x)], of="outputs", shared=x)
    assert np.isnan(given.values[0, 1]) and given.facts["shared expert"] == given.values[0, 0]


def test_fewer_rows_alone_lower_a_rank():
    x = torch.randn(200, 60, dtype=torch.float64, generator=generator())
    few, many = (spectrum([x[:r], x[:r]], quantity="entropy_rank").values[0, 0] for r in (25, 200))
    assert few < 25 and many > 45
