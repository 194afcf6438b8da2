"""Maps of experts and tracks of their tokens: planted clusters, known paths, and an expert that stays where it is."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from analysis.errors import NotComparable, TooFew
from analysis.inference import evaluate
from analysis.measure import Inputs, get
from analysis.projections.mds import classical_scaling
from analysis.slots import Prompts, Shape, text_digest
from analysis.statistic import State

BLOCKS = 8
NAMES = tuple(f"p{i}" for i in range(64))
HELD = Prompts(NAMES, tuple(map(text_digest, NAMES)), ("all",) * 64)


def sums(where, tokens=100, noise=0.0, seed=0):
    """Centroid sums of experts at these places [layer, expert, model], spread over eight blocks."""
    layers, experts, model = where.shape
    g = torch.Generator().manual_seed(seed)
    jitter = noise * torch.randn(BLOCKS, layers, experts, model, dtype=torch.float64, generator=g)
    served = torch.full((BLOCKS, layers, experts), tokens)
    total = (where + jitter) * tokens
    arrays = {
        "served": served,
        "weight": served.double() / 2,
        "input": total,
        "weighted_input": total / 2,
        "seen": served.sum(-1),
        "seen_input": total.sum(2),
    }
    return State("centroid_sums", Shape(tuple(map(str, range(layers))), experts, 2, model, 4), HELD, arrays)


def walk(places, labels=None, **how):
    labels = labels or tuple(str(100 * i) for i in range(len(places)))
    states = [sums(where, seed=i, **how) for i, where in enumerate(places)]
    return tuple(Inputs(s.shape, {"centroid_sums": s}, {}, label) for s, label in zip(states, labels, strict=True))


def square():
    """Expert 0 walks round three sides of a square of side 2, expert 1 one straight side of 3, expert 2 stays."""
    path = torch.tensor([[0, 0], [2, 0], [2, 2], [0, 2]], dtype=torch.float64)
    places = torch.zeros(4, 1, 3, 5, dtype=torch.float64)
    places[:, 0, 0, :2] = path
    places[:, 0, 1, 2] = torch.arange(4)
    places[:, 0, 2, 3] = 9
    return list(places)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("length", (6, 3, 0)), ("speed", (0.02, 0.01, 0)), ("net", (2, 3, 0)), ("straightness", (1 / 3, 1, math.nan))],
)
def test_known_paths(quantity, expected):
    result = evaluate(get("centroid_trajectory"), walk(square()), {"quantity": quantity, "centroid": "plain"})
    np.testing.assert_allclose(result.values[0], expected, atol=1e-9)
    assert result.facts["checkpoints"] == 4
    assert result.facts["mean path length"] == pytest.approx(3)
    assert np.isnan(result.values).any() == any(c.startswith("NaN: ") for c in result.caveats)


def test_what_all_tokens_do_together_is_no_movement_of_an_expert():
    drift = torch.arange(4)[:, None, None, None] * torch.ones(5, dtype=torch.float64)
    still = torch.randn(1, 1, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + drift
    assert evaluate(get("centroid_trajectory"), walk(list(still)), {}).values.max() < 1e-9
    plain = evaluate(get("centroid_trajectory"), walk(list(still)), {"centroid": "plain"}).values
    np.testing.assert_allclose(plain, 3 * math.sqrt(5), atol=1e-9)


def test_an_expert_that_stays_is_inside_the_band_and_one_that_walks_is_not():
    places = torch.zeros(4, 1, 24, 16, dtype=torch.float64)
    places[:, 0, 0, 0] = 5 * torch.arange(4)
    result = evaluate(get("centroid_trajectory"), walk(list(places), noise=1.0), {"centroid": "plain"})
    inside = (result.null.low <= result.values) & (result.values <= result.null.high)
    assert not inside[0, 0] and result.values[0, 0] > 2 * result.null.high[0, 0]
    assert inside[0, 1:].mean() > 0.8
    assert result.facts["split-half jump"] == pytest.approx(math.sqrt(2 * 16 / 8), rel=0.1)


def test_speed_is_per_training_step_where_labels_are_numbers():
    for labels, time in ((("0", "10", "20", "40"), 40), (("a", "b", "c", "d"), 3), (("5",) * 4, 3)):
        sides = walk(square(), labels)
        speed = evaluate(get("centroid_trajectory"), sides, {"quantity": "speed", "centroid": "plain"}).values
        assert speed[0, 0] == pytest.approx(6 / time)


def test_an_expert_that_is_dead_at_one_checkpoint_has_no_path():
    sides = list(walk(square()))
    state = sides[2].centroid_sums
    arrays = {name: array.clone() for name, array in state.arrays.items()}
    for name in ("served", "weight", "input", "weighted_input"):
        arrays[name][:, 0, 1] = 0
    sides[2] = dataclasses.replace(sides[2], states={"centroid_sums": dataclasses.replace(state, arrays=arrays)})
    result = evaluate(get("centroid_trajectory"), tuple(sides), {"centroid": "plain"})
    assert np.isnan(result.values[0]).tolist() == [False, True, False]
    assert result.facts["experts with tokens at all checkpoints"] == 2
    plane = evaluate(get("centroid_map"), tuple(sides), {"centroid": "plain"})
    assert np.isnan(plane.values[0, 2, 1]).all() and np.isnan(plane.values).any(-1).sum() == 1


def test_one_checkpoint_is_no_track_and_different_models_have_none():
    with pytest.raises(TooFew, match="it needs two"):
        evaluate(get("centroid_trajectory"), walk(square()[:1]), {})
    other = walk([torch.zeros(1, 3, 6, dtype=torch.float64)])
    with pytest.raises(NotComparable, match="no common track"):
        evaluate(get("centroid_trajectory"), walk(square()) + other, {})


def flat_walk():
    """Two layers at three steps whose points move within a plane of their own."""
    places = torch.zeros(3, 2, 4, 6, dtype=torch.float64)
    drawn = torch.randn(2, 3, 1, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    places[:, :1, :, :2], places[:, 1:, :, 3:5] = drawn
    return places


def rows_side(rows, label):
    """A checkpoint that brings its router rows [layer, expert, model] and nothing else."""
    shape = Shape(tuple(map(str, range(len(rows)))), rows.shape[1], 2, rows.shape[2], 4)
    return Inputs(shape, {}, {"router_weight": rows}, label)


@pytest.mark.parametrize("name", ["centroid_map", "router_row_map"])
def test_a_common_frame_keeps_a_flat_walk_as_it_is(name):
    """Movement within one plane: distances on the map are the true ones, across checkpoints too."""
    places = flat_walk()
    if name == "centroid_map":
        result = evaluate(get(name), walk(list(places)), {"centroid": "plain"})
    else:
        sides = tuple(rows_side(rows, str(100 * i)) for i, rows in enumerate(places))
        result = evaluate(get(name), sides, {"form": "raw"})
    for layer in (0, 1):
        true = torch.cdist(places[:, layer].reshape(12, 6), places[:, layer].reshape(12, 6)).numpy()
        shown = torch.from_numpy(result.values[layer].reshape(12, 2))
        np.testing.assert_allclose(torch.cdist(shown, shown).numpy(), true, atol=1e-6)
        assert result.facts[f"variance shown, layer {layer}"] == pytest.approx(1)
    assert [axis.name for axis in result.axes] == ["layer", "step", "expert", "coordinate"]
    assert result.axes[1].labels == ("0", "100", "200") and result.axes[2].labels[1] == "E1"


def test_a_turn_of_the_whole_run_turns_no_map():
    """The frame is of the points alone: turning the space they lie in changes no coordinate."""
    rows = torch.randn(3, 2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    turn = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(5))).Q
    one, other = (
        evaluate(get("router_row_map"), tuple(rows_side(r, str(i)) for i, r in enumerate(seen)), {}).values
        for seen in (rows, rows @ turn)
    )
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_what_all_rows_share_is_no_movement_of_a_router_row():
    rows = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    sides = tuple(rows_side(rows + shift, str(shift)) for shift in (0, 1, 5))
    centred = evaluate(get("router_row_map"), sides, {})
    np.testing.assert_allclose(centred.values[:, 1:], np.repeat(centred.values[:, :1], 2, 1), atol=1e-9)
    assert centred.facts["mean path length"] == pytest.approx(0, abs=1e-9)
    moved = evaluate(get("router_row_map"), sides, {"form": "raw"})
    assert moved.facts["mean path length"] == pytest.approx(5 * math.sqrt(6))


def test_a_layer_whose_points_are_all_the_same_is_blank_and_the_others_are_not():
    places = flat_walk()
    places[:, 0] = 3
    result = evaluate(get("centroid_map"), walk(list(places)), {"centroid": "plain"})
    assert np.isnan(result.values[0]).all() and np.isfinite(result.values[1]).all()
    assert any(caveat.startswith("NaN: layer 0: all 12 points are the same") for caveat in result.caveats)
    with pytest.raises(TooFew, match="are the same"):
        evaluate(get("centroid_map"), walk(list(places[:, :1])), {"centroid": "plain"})


def embedded(world, change=lambda batch: batch, **knobs):
    measure = get("expert_embedding")
    return evaluate(measure, world.inputs_for(measure, change=change), knobs)


@pytest.mark.parametrize("features", ["centroid", "router_row", "output", "jacobian"])
@pytest.mark.parametrize("method", ["pca", "mds"])
def test_every_feature_gives_a_point_per_expert_of_every_layer(features, method, world):
    result = embedded(world, features=features, method=method)
    assert result.values.shape == (18, 2) and not np.isnan(result.values).any()
    assert result.axes[0].labels[7] == "2/E1" and result.axes[0].groups[7] == "2"
    assert 0 < result.facts["trustworthiness"] <= 1
    assert result.facts["features"] == {"jacobian": 20}.get(features, 5)


def test_experts_with_the_same_router_row_are_one_point(world):
    measure = get("expert_embedding")
    (side,) = world.inputs_for(measure)
    rows = side.weights["router_weight"].clone()
    rows[1, 4] = rows[1, 2]
    side = dataclasses.replace(side, weights={**side.weights, "router_weight": rows})
    result = evaluate(measure, (side,), {"features": "router_row", "method": "mds"})
    np.testing.assert_allclose(result.values[6 + 4], result.values[6 + 2], atol=1e-9)
    assert result.facts["different points"] == 17


def test_planted_groups_stand_apart(world):
    """Router rows around two directions: the first coordinate tells them."""
    measure = get("expert_embedding")
    (side,) = world.inputs_for(measure)
    rows = 0.1 * side.weights["router_weight"].clone()
    rows[:, ::2, 0] += 3
    rows[:, 1::2, 1] += 3
    side = dataclasses.replace(side, weights={**side.weights, "router_weight": rows})
    for method in ("pca", "mds"):
        first = evaluate(measure, (side,), {"features": "router_row", "method": method}).values[:, 0]
        assert max(first[::2]) < min(first[1::2]) or min(first[::2]) > max(first[1::2])


def test_an_expert_without_tokens_has_no_centroid_and_no_place(world):
    gone = lambda batch: dataclasses.replace(batch, served=batch.served & (batch.indices != 2))  # noqa: E731
    result = embedded(world, gone)
    assert np.isnan(result.values[[2, 8, 14]]).all() and not np.isnan(np.delete(result.values, [2, 8, 14], 0)).any()
    assert result.facts["points shown"] == 15
    assert any(caveat.startswith("NaN: an expert without tokens") for caveat in result.caveats)


def test_classical_scaling_gives_flat_distances_back():
    points = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    found, share = classical_scaling(distances)
    again = torch.cdist(found, found, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(again, distances, rtol=0, atol=1e-9)
    assert float(share.sum()) == pytest.approx(1)
    assert (found**3).sum(0).min() >= 0


def test_angles_on_a_circle_are_kept_by_scaling_and_shortened_by_a_shadow():
    """Points of an arc: their angles lie on a line, which MDS of angles gives back and PCA bends."""
    from analysis.projections.plane import plane

    angle = torch.linspace(0, 1.5, 7, dtype=torch.float64)
    points = torch.stack([angle.cos(), angle.sin(), torch.zeros(7).double()], -1)
    flat, facts = plane(points, "mds", 3, 0)
    np.testing.assert_allclose(np.diff(np.sort(flat[:, 0].numpy())), 0.25, atol=1e-9)
    assert facts["variance on MDS 1"] == pytest.approx(1)
