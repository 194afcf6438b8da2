"""The shared expert's row and column: planted copies, closed form against autograd, subspaces against numpy."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.func import jacrev, vmap
from torch.nn import functional as F

from analysis.common_tokens import common_tokens
from analysis.jacobians import MeanJacobians, cosines, gram
from analysis.statistic import get as get_statistic
from analysis.statistic import statistics
from analysis.token_jacobians import token_probes
from tests.analysis.beside import EXPERTS, MEASURES, WIDE, ask, side_of, wide_expert, with_shared

COPIED = 3
BASELINES = ("random experts", "shuffled weights", "shuffled outputs")
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
KNOBS = [
    *(("jacobian_alignment", {"tokens": tokens}) for tokens in ("common", "served", "each")),
    *(("jacobian_alignment", {"method": "sketch", "baseline": b}) for b in BASELINES),
    *(("output_similarity", {"of": of}) for of in ("same token", "mean output")),
    # No score: these worlds are blind, so it is NaN in every pair. test_shared_subspace has it on planted spans.
    *(("grassmann_distance", {"n": 2, "form": form}) for form in ("raw", "normalised")),
]
DRAWN = {"random", "score between", "largest standard error of the sketch"}
"""Facts that depend on what a null draws, or on all pairs."""
IDS = [f"{name}-{'-'.join(map(str, knobs.values()))}" for name, knobs in KNOBS]
every_case = pytest.mark.parametrize(("name", "knobs"), KNOBS, ids=IDS)


def jacobians_at(expert, x):
    return vmap(jacrev(lambda row: expert(row[None])[0]))(x)


@pytest.fixture(scope="module")
def copied(world):
    """The shared expert is routed expert 3."""
    return side_of(world, with_shared(world, lambda own: own[COPIED]))


@pytest.fixture(scope="module")
def wide(world):
    """The shared expert is another, 7 wide where the routed ones are 4."""
    batches = with_shared(world, lambda own: wide_expert())
    return side_of(world, batches), batches


@pytest.mark.parametrize("tokens", ["common", "each"])
def test_a_shared_expert_that_is_a_copy_is_aligned_with_the_copied_one_and_no_other(copied, tokens):
    found = ask("jacobian_alignment", copied, tokens=tokens)
    assert found.values.shape == (3, EXPERTS + 1, EXPERTS + 1)
    assert [axis.labels[-2:] for axis in found.axes[1:]] == [("E5", "shared")] * 2
    np.testing.assert_allclose(found.values[:, -1, COPIED], 1, atol=1e-12)
    np.testing.assert_allclose(found.values[:, -1, :-1], found.values[:, COPIED, :-1], atol=1e-12)
    assert (np.delete(np.abs(found.values[:, -1, :-1]), COPIED, 1) < 0.9).all()
    assert found.facts["mean with the shared expert (last row)"] == pytest.approx(
        found.values[:, -1, :-1].mean(), abs=1e-12
    )


@pytest.mark.parametrize("of", ["same token", "mean output"])
def test_a_copy_answers_alike(copied, of):
    found = ask("output_similarity", copied, likeness="cosine", of=of)
    np.testing.assert_allclose(found.values[:, COPIED, -1], 1, atol=1e-12)
    np.testing.assert_allclose(found.values[:, -1, :-1], found.values[:, COPIED, :-1], atol=1e-12)
    assert (found.values[:, -1, -1] == 1).all()


def test_means_over_pairs_stay_those_of_routed_experts(copied):
    first, second = np.triu_indices(EXPERTS, 1)
    for name in MEASURES:
        knobs = {"n": 2} if name == "grassmann_distance" else {}
        found = ask(name, copied, **knobs)
        routed_pairs = found.values[:, first, second]
        assert found.facts["mean over pairs"] == pytest.approx(routed_pairs.mean(), abs=1e-12)
        assert found.facts["pairs"] == routed_pairs.size
        assert found.facts["mean with the shared expert (last row)"] == pytest.approx(
            found.values[:, -1, :-1].mean(), abs=1e-12
        )


@pytest.mark.parametrize("tokens", ["common", "served"])
@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_the_closed_form_is_autograds_mean_whatever_the_shared_experts_width(wide, tokens, method):
    side, batches = wide
    for layer, batch in enumerate(batches):
        rows, means = common_tokens(batch)[0], []
        for index, expert in enumerate([*batch.experts, batch.shared]):
            mine = ((batch.indices == index) & batch.served).any(-1) if index < EXPERTS else slice(None)
            x = batch.expert_input[rows if tokens == "common" else mine]
            means.append(jacobians_at(expert, x).mean(0).flatten())
        flat = torch.stack(means)
        expected = F.cosine_similarity(flat[:, None], flat[None], dim=-1)
        # 5 orthogonal probes of 5 dimensions are exact too.
        found = ask("jacobian_alignment", side, tokens=tokens, method=method).values[layer]
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_products_of_each_token_are_those_of_its_own_jacobians(wide):
    side, batches = wide
    found = ask("jacobian_alignment", side, tokens="each").values
    for layer, batch in enumerate(batches):
        rows, hashes = common_tokens(batch)
        x, total = batch.expert_input[rows], torch.zeros(EXPERTS + 1, EXPERTS + 1).double()
        each = torch.stack([jacobians_at(expert, x) for expert in [*batch.experts, batch.shared]], 1)
        for jacobians, v in zip(each, token_probes(5, hashes), strict=True):
            images = jacobians @ v
            total += images @ images.mT
        norms = total.diagonal().sqrt()
        np.testing.assert_allclose(found[layer], total / norms[:, None] / norms, **CLOSE)


def test_likeness_is_that_of_the_outputs_one_by_one(wide):
    side, batches = wide
    for layer, batch in enumerate(batches):
        x = batch.expert_input[common_tokens(batch)[0]]
        mine, own = batch.shared(x), [expert(x) for expert in batch.experts]
        each = torch.stack([F.cosine_similarity(mine, y, dim=-1) for y in own])
        for likeness, expected in (("cosine", each), ("angular", 1 - each.acos() / math.pi)):
            found = ask("output_similarity", side, likeness=likeness).values[layer, -1, :-1]
            np.testing.assert_allclose(found, expected.mean(-1), **CLOSE)
        mean = torch.stack([F.cosine_similarity(mine.mean(0), y.mean(0), dim=0) for y in own])
        found = ask("output_similarity", side, likeness="cosine", of="mean output").values[layer, :-1, -1]
        np.testing.assert_allclose(found, mean, **CLOSE)


@pytest.mark.slow
def test_a_silent_shared_expert_is_like_nobody_and_harms_no_other(world):
    def silent(own):
        return dataclasses.replace(wide_expert(), down=torch.zeros(5, WIDE).double())

    quiet = side_of(world, with_shared(world, silent), "output_similarity", "jacobian_alignment")
    loud = side_of(world, with_shared(world, lambda own: wide_expert()), "output_similarity", "jacobian_alignment")
    for name in ("output_similarity", "jacobian_alignment"):
        found = ask(name, quiet)
        assert np.isnan(found.values[:, -1]).all() and np.isnan(found.values[:, :, -1]).all()
        np.testing.assert_allclose(found.values[:, :-1, :-1], ask(name, loud).values[:, :-1, :-1], **CLOSE)
        assert any(caveat.startswith("NaN: an expert") for caveat in found.caveats)
        assert math.isnan(found.facts["mean with the shared expert (last row)"])


def test_a_dead_expert_leaves_the_shared_one_its_tokens(world, wide):
    batches = [dataclasses.replace(b, served=b.served & (b.indices != 0)) for b in wide[1]]
    found = ask("jacobian_alignment", side_of(world, batches, "jacobian_alignment"), tokens="served").values
    assert np.isnan(found[:, -1, 0]).all() and np.isnan(found[:, 0]).all()
    np.testing.assert_allclose(found[:, -1, 1:], ask("jacobian_alignment", wide[0], tokens="served").values[:, -1, 1:])


class Unread:
    def __len__(self):
        return 3

    def __getitem__(self, layer):
        raise AssertionError("what a model lacks was asked for")


def test_a_shared_expert_without_a_gate_is_compared_without_one(world):
    bare = dataclasses.replace(wide_expert(phi=lambda _, u: u.relu().square()), gate=None)
    batches = with_shared(world, lambda own: bare)
    side = side_of(world, batches, "jacobian_alignment")
    side = dataclasses.replace(side, weights=side.weights | {"shared_gate_weight": Unread()})
    rows = common_tokens(batches[1])[0]
    flat = torch.stack(
        [jacobians_at(e, batches[1].expert_input[rows]).mean(0).flatten() for e in [*batches[1].experts, bare]]
    )
    expected = F.cosine_similarity(flat[:, None], flat[None], dim=-1)
    np.testing.assert_allclose(ask("jacobian_alignment", side).values[1], expected, **CLOSE)


@pytest.mark.slow
@every_case
def test_the_routed_experts_part_of_the_table_is_what_it_is_without_a_shared_expert(world, wide, name, knobs):
    side, batches = wide
    bare = dataclasses.replace(batches[0].shape, shared=0)
    alone = side_of(world, [dataclasses.replace(b, shape=bare, shared=None, shared_weight=None) for b in batches], name)
    whole, part = ask(name, side, **knobs), ask(name, alone, **knobs)
    assert part.axes[1].labels == tuple(f"E{e}" for e in range(EXPERTS))
    assert "mean with the shared expert (last row)" not in part.facts
    np.testing.assert_allclose(whole.values[:, :-1, :-1], part.values, **CLOSE)
    for bound in ("low", "high"):
        cut = getattr(whole.interval, bound)[:, :-1, :-1]
        np.testing.assert_allclose(cut, getattr(part.interval, bound), **CLOSE)
    for fact in part.facts.keys() - DRAWN:
        told = part.facts[fact]
        told = told if isinstance(told, str) else pytest.approx(told, rel=1e-9)
        assert whole.facts[fact] == told, fact


@every_case
def test_every_cell_of_the_larger_table_has_a_null_and_an_interval(wide, name, knobs):
    found = ask(name, wide[0], **knobs)
    same = np.arange(EXPERTS + 1)
    diagonal = 0 if name == "grassmann_distance" else 1
    for part in (found.null, found.interval):
        low, high = (np.broadcast_to(getattr(part, bound), found.values.shape) for bound in ("low", "high"))
        assert (low <= high)[~np.isnan(low)].all() and not np.isnan(low[:, :, -1]).all()
        np.testing.assert_allclose(low[:, same, same], diagonal, atol=1e-12)
        np.testing.assert_allclose(high[:, same, same], diagonal, atol=1e-12)
    assert type(found).from_json(found.to_json()).to_json() == found.to_json()


@pytest.mark.slow
@every_case
def test_renaming_routed_experts_leaves_the_shared_one_last(world, wide, name, knobs):
    side, batches = wide
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    back = order.argsort()
    moved = side_of(world, [world.permute_experts(b, order) for b in batches], name)
    before, after = ask(name, side, **knobs), ask(name, moved, **knobs)
    places = [*back.tolist(), EXPERTS]
    for pick in (lambda r: r.values, lambda r: r.null.low, lambda r: r.interval.high):
        old = np.broadcast_to(pick(before), before.values.shape)
        new = np.broadcast_to(pick(after), before.values.shape)
        np.testing.assert_allclose(new, old[:, places][:, :, places], **CLOSE)
    assert before.axes == after.axes


@pytest.mark.parametrize("name", sorted(statistics()))
def test_no_statistic_of_routed_experts_sees_the_shared_one(world, wide, name):
    """Whatever is not the shared expert's own is the same with and without it."""
    statistic = get_statistic(name)
    if not statistic.reads_layers or name == "expert_rows":
        return
    batches = wide[1]
    bare = dataclasses.replace(batches[0].shape, shared=0)
    alone = world.state_of(name, [dataclasses.replace(b, shape=bare, shared=None, shared_weight=None) for b in batches])
    whole = world.state_of(name, batches)
    for array in statistic.arrays:
        if array.startswith("shared_"):
            assert alone[array].numel() == 0, array
        elif (name, array) == ("common_rows", "weight"):
            assert alone[array].isnan().all() and not whole[array].isnan().all()
        else:
            torch.testing.assert_close(whole[array], alone[array], rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["slope_sums", "output_sums", "common_rows"])
def test_sums_of_a_shared_expert_merge_and_leave_a_block_out_as_all_sums_do(world, wide, name):
    statistic, batches = get_statistic(name), wide[1]
    whole = world.state_of(name, batches)
    assert statistic.bytes(whole.shape, len(whole.prompts)) == sum(a.nbytes for a in whole.arrays.values())
    part = torch.arange(len(batches[0].keys)) % 3
    pieces = [world.take(b, (part == p).nonzero()[:, 0]) for p in (2, 0, 1) for b in batches]
    merged = world.state_of(name, pieces)
    for array in statistic.arrays:
        torch.testing.assert_close(merged[array], whole[array], rtol=1e-12, atol=1e-12, equal_nan=True)
    blocks = torch.tensor(batches[0].prompts.blocks)[batches[0].keys.prompt]
    rest = world.state_of(name, [world.take(b, (blocks != int(blocks[0])).nonzero()[:, 0]) for b in batches])
    without = whole.without_block(int(blocks[0]))
    for array in statistic.arrays:
        torch.testing.assert_close(without[array], rest[array], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_all_tokens_are_the_shared_experts_own(wide, world):
    state, batch = world.state_of("slope_sums", wide[1]), wide[1][1]
    assert torch.equal(state["shared_served"].sum(0)[:, 0], torch.full((3,), len(batch.keys)))
    gate, up = batch.shared.slopes_each(batch.expert_input)
    torch.testing.assert_close(state["shared_gate"].sum(0)[1], gate.sum(0), **CLOSE)
    torch.testing.assert_close(state["shared_up"].sum(0)[1], up.sum(0), **CLOSE)


def test_a_mean_jacobian_beside_the_others_is_one_more_of_them_in_any_block():
    generator = torch.Generator().manual_seed(0)
    normal = lambda *size: torch.randn(*size, dtype=torch.float64, generator=generator)  # noqa: E731
    made = [
        MeanJacobians(normal(n, h, 5), normal(n, h, 5), normal(n, 5, h), normal(n, h), normal(n, h))
        for n, h in ((3, 4), (1, 9))
    ]
    both = dataclasses.replace(made[0], beside=made[1])
    dense = torch.stack([own.dense(e) for own, e in both.every]).flatten(1)
    assert dense.shape == (4, 25)
    for budget in (1, 4 * 5 * 2 * 8, 2**20):
        torch.testing.assert_close(gram(both, budget), dense @ dense.mT, **CLOSE)
    v = normal(3, 5)
    torch.testing.assert_close(both.along(v), torch.einsum("eoi,pi->epo", dense.view(4, 5, 5), v), **CLOSE)
    assert (cosines(gram(both)).diagonal() == 1).all()


def test_half_precision_weights_of_a_shared_expert_are_accepted(wide):
    side, _ = wide
    half = dataclasses.replace(side, weights={k: w.bfloat16() for k, w in side.weights.items()})
    for tokens in ("common", "served"):
        whole, halved = (ask("jacobian_alignment", s, tokens=tokens).values for s in (side, half))
        np.testing.assert_allclose(halved, whole, atol=0.02)
