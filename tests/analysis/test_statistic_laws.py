"""Every statistic is a commutative monoid, and says truly what it costs."""

import copy
import dataclasses
import itertools

import pytest
import torch

from analysis.errors import BadDeclaration, NotComparable, UnknownName
from analysis.slots import BLOCKS
from analysis.statistic import get, statistics

EVERY = sorted(statistics())


def same(one, other):
    row = {key: i for i, key in enumerate(other.prompts.keys)}
    assert set(one.prompts.keys) == set(other.prompts.keys)
    other = other.take([row[key] for key in one.prompts.keys])
    for name in get(one.statistic).arrays:
        torch.testing.assert_close(
            one[name], other[name], rtol=1e-12, atol=1e-12, equal_nan=True, msg=f"{one.statistic}.{name}"
        )


def empty_like(array, name, spec):
    return spec.blank(name, tuple(array.shape))


@pytest.mark.parametrize("name", EVERY)
def test_any_cut_of_the_tokens_merges_to_the_whole(name, world):
    batches = world.batches_for(get(name))
    whole = world.state_of(name, batches)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        part = torch.randint(0, 4, (len(batches[0].keys),), generator=generator)
        pieces = [world.take(b, (part == p).nonzero()[:, 0]) for b in batches for p in range(4)]
        order = torch.randperm(len(pieces), generator=generator).tolist()
        same(whole, world.state_of(name, [pieces[i] for i in order]))


@pytest.mark.parametrize("name", EVERY)
def test_growing_by_batches_is_merging_their_states(name, world):
    statistic = get(name)
    batches = [batch for seed in range(2) for batch in world.batches_for(statistic, seed, tag=f"{seed}-")]
    batches += [world.take(batch, range(40)) for batch in world.batches_for(statistic, 2)]
    grown = statistic.empty(world.SHAPE)
    for batch in batches:
        grown = statistic.grow(grown, batch)
    same(world.state_of(name, batches), grown)


@pytest.mark.parametrize("name", EVERY)
def test_merging_is_commutative_and_associative_and_empty_is_neutral(name, world):
    statistic = get(name)
    # Other prompts in each part: a token is the same token with the same routing, wherever it is seen again.
    parts = [world.state_of(name, world.batches_for(statistic, seed, tag=f"{seed}-")) for seed in range(3)]
    a, b, c = parts
    whole = statistic.merge(statistic.merge(a, b), c)
    for x, y, z in itertools.permutations(parts):
        same(whole, statistic.merge(x, statistic.merge(y, z)))
    same(a, statistic.merge(a, statistic.empty(a.shape)))
    same(a, statistic.merge(statistic.empty(a.shape), a))


@pytest.mark.parametrize("name", EVERY)
def test_prompts_of_two_shards_are_united(name, world):
    statistic = get(name)
    batch = world.batches_for(statistic)
    halves = [[world.take(b, (b.keys.prompt % 2 == parity).nonzero()[:, 0]) for b in batch] for parity in range(2)]
    cut = [[_only(b, world) for b in half] for half in halves]
    joined = statistic.merge(world.state_of(name, cut[0]), world.state_of(name, cut[1]))
    same(world.state_of(name, batch), joined)


def _only(batch, world):
    """The batch without the prompts that have no token in it."""
    present = batch.keys.prompt.unique()
    keys = dataclasses.replace(batch.keys, prompt=torch.searchsorted(present, batch.keys.prompt))
    return dataclasses.replace(batch, keys=keys, prompts=batch.prompts.take(present.tolist()))


@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_tokens_changes_nothing(name, world):
    batches = world.batches_for(get(name))
    order = torch.randperm(len(batches[0].keys), generator=torch.Generator().manual_seed(1))
    same(world.state_of(name, batches), world.state_of(name, [world.take(b, order) for b in batches]))


@pytest.mark.parametrize("name", EVERY)
def test_renaming_experts_permutes_expert_axes_and_nothing_else(name, world):
    batches = world.batches_for(get(name))
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    before, after = (world.state_of(name, x) for x in (batches, [world.permute_experts(b, order) for b in batches]))
    for array, spec in get(name).arrays.items():
        expected = before[array]
        for axis, label in enumerate(spec.axes):
            if isinstance(label, str) and label.removesuffix("_b") == "expert":
                expected = expected.index_select(axis, order.argsort())
        if array == "indices":  # values that name experts
            expected = order.to(expected.dtype)[expected.long()]
        torch.testing.assert_close(after[array], expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", EVERY)
def test_arrays_are_as_declared_and_bytes_are_exact(name, world):
    state = world.state_of(name, world.batches_for(get(name)))
    held = sum(array.numel() * array.element_size() for array in state.arrays.values())
    assert get(name).bytes(state.shape, len(state.prompts), 12 * 16) == held
    assert set(state.arrays) == set(get(name).arrays)


@pytest.mark.parametrize("name", EVERY)
def test_the_batch_is_left_as_it_was_and_twice_is_the_same(name, world):
    batches = world.batches_for(get(name))
    kept = copy.deepcopy(batches)
    first, second = world.state_of(name, batches), world.state_of(name, batches)
    for array in first.arrays:
        torch.testing.assert_close(first[array], second[array], rtol=0, atol=0, equal_nan=True)
    for old, new in zip(kept, batches, strict=True):
        for field in dataclasses.fields(old):
            if isinstance(getattr(old, field.name), torch.Tensor):
                torch.testing.assert_close(getattr(old, field.name), getattr(new, field.name), equal_nan=True)


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_slots_are_accepted(name, world):
    def halve(batch):
        floats = [f.name for f in dataclasses.fields(batch) if getattr(batch, f.name) is not batch.keys]
        floats = [f for f in floats if torch.is_tensor(getattr(batch, f)) and getattr(batch, f).is_floating_point()]
        return dataclasses.replace(batch, **{f: getattr(batch, f).bfloat16() for f in floats})

    batches = world.batches_for(get(name))
    whole, half = world.state_of(name, batches), world.state_of(name, [halve(b) for b in batches])
    for array, spec in get(name).arrays.items():
        assert half[array].dtype == spec.dtype
        if array not in ("margins", "prompt_top"):  # counts on either side of an edge: rounding carries some across
            torch.testing.assert_close(half[array], whole[array], rtol=0.05, atol=0.5, equal_nan=True)


@pytest.mark.parametrize("name", EVERY)
def test_leaving_a_block_out_is_never_having_run_its_prompts(name, world):
    # 64 tokens: no more than the smallest sample holds, since a full one is not filled up again.
    batches = world.batches_for(get(name), lengths=(4,) * 16)
    blocks = torch.tensor(batches[0].prompts.blocks)
    block = int(blocks[0])
    rest = [world.take(b, (blocks[b.keys.prompt] != block).nonzero()[:, 0]) for b in batches]
    without = world.state_of(name, [_only(b, world) for b in rest])
    same(without, world.state_of(name, batches).without_block(block))


@pytest.mark.parametrize("name", EVERY)
def test_identity_experts_count_nowhere(name, world):
    batches = world.batches_for(get(name))
    changed = [dataclasses.replace(b, indices=torch.where(b.indices == 0, 6, b.indices)) for b in batches]
    before, after = world.state_of(name, batches), world.state_of(name, changed)
    chosen = [(a, s) for a, s in get(name).arrays.items() if "expert" in s.axes and s.routed]
    for array, spec in chosen:
        axis = spec.axes.index("expert")
        gone = after[array].select(axis, 0)
        torch.testing.assert_close(gone, empty_like(gone, array, spec), rtol=0, atol=0, equal_nan=True)
        keep = torch.arange(1, 6)
        left, right = (state[array].index_select(axis, keep) for state in (before, after))
        if "expert_b" in spec.axes:
            left, right = left[..., 1:], right[..., 1:]
        torch.testing.assert_close(left, right, equal_nan=True)


def test_every_array_can_leave_a_block_of_prompts_out():
    for statistic in statistics().values():
        first = {spec.axes[0] for spec in statistic.arrays.values() if not spec.sampled}
        assert first <= {"prompt", "token", "block"}, statistic.name


def test_hand_counted_coactivation_of_four_tokens(world):
    batch = world.take(world.routes(lengths=(4, 1)), range(4))
    indices = torch.tensor([[[0, 1], [1, 0], [0, 2], [4, 5]]]).expand(3, -1, -1)
    both = world.state_of("coactivation_counts", [dataclasses.replace(batch, indices=indices)])["both"].sum(0)[0]
    expected = torch.zeros(6, 6, dtype=torch.int64)
    for i, j, n in [(0, 0, 3), (1, 1, 2), (2, 2, 1), (4, 4, 1), (5, 5, 1), (0, 1, 2), (0, 2, 1), (4, 5, 1)]:
        expected[i, j] = expected[j, i] = n
    assert torch.equal(both, expected)


def test_contributions_by_double_loop(world):
    batch = world.layers()[1]
    state = world.state_of("contribution_sums", [batch])
    expert, layer = 2, 1
    pairs = [
        (
            *(float(of[t, s]) for of in (batch.weights, batch.output_norms)),
            *batch.output_extremes[t, s].tolist(),
            batch.prompts.blocks[batch.keys.prompt[t]],
        )
        for t in range(len(batch.keys))
        for s in range(2)
        if batch.served[t, s] and int(batch.indices[t, s]) == expert
    ]
    for block in range(BLOCKS):
        here = [(g, f) for g, f, _, _, b in pairs if b == block]
        ends = [(low, high) for _, _, low, high, b in pairs if b == block]
        expected = {
            "served": len(here),
            "weight": sum(g for g, _ in here),
            "norm": sum(f for _, f in here),
            "norm_squared": sum(f * f for _, f in here),
            "weighted_norm": sum(g * f for g, f in here),
            "weighted_norm_squared": sum(g * g * f * f for g, f in here),
            "norm_max": max((f for _, f in here), default=float("-inf")),
            "component_max": max((high for _, high in ends), default=float("-inf")),
            "component_size_max": max((max(abs(low), abs(high)) for low, high in ends), default=float("-inf")),
        }
        for array, value in expected.items():
            assert float(state[array][block, layer, expert]) == pytest.approx(value, rel=1e-12), array
    assert (state["served"][:, [0, 2]] == 0).all()


def test_router_sums_leave_out_what_is_hidden_and_count_what_is_in(world):
    batch = world.layers()[0]
    hidden = batch.logits.clone()
    hidden[:5] = torch.nan
    state = world.state_of("router_sums", [dataclasses.replace(batch, logits=hidden)])
    tokens = len(batch.keys)
    assert int(state["count"].sum()) == tokens
    assert int(state["logits_seen"].sum()) == tokens - 5
    assert int(state["margins"].sum()) == int((~batch.margins.isnan()).sum())
    torch.testing.assert_close(state["probabilities"].sum(-1), state["scored"].double(), rtol=0, atol=1e-4)
    lse = torch.logsumexp(hidden[5:].double(), -1)
    torch.testing.assert_close(state["logsumexp_squared"].sum(), (lse**2).sum())


def test_margins_fall_into_the_bin_that_holds_them(world):
    from analysis.statistics.router_sums import MARGIN_EDGES

    batch = world.take(world.layers()[0], range(4))
    margins = torch.tensor([-1.0, 0.0, 1.0, 1e9])
    state = world.state_of("router_sums", [dataclasses.replace(batch, margins=margins)])
    bins = state["margins"].sum((0, 1)).nonzero()[:, 0].tolist()
    assert bins == [0, 1, MARGIN_EDGES.index(1.0) + 1, len(MARGIN_EDGES)]


def test_token_classes_add_up_to_the_selections(world):
    batch = world.routes()
    state = world.state_of("token_class_counts", [batch])
    assert state["of_class"].sum((0, 2)).tolist() == [len(batch.keys)] * 3
    assert state["tokens"].sum() == len(batch.keys)
    selected = world.state_of("prompt_counts", [batch])["selected"].sum(0)
    for own in state["selected"].sum((0, -1)).unbind(-1):
        assert torch.equal(own, selected)


def test_shards_of_different_models_refuse_to_merge(world):
    statistic = get("prompt_counts")
    other = dataclasses.replace(world.SHAPE, experts=7)
    with pytest.raises(NotComparable, match="experts=7"):
        statistic.merge(statistic.empty(world.SHAPE), statistic.empty(other))


def test_a_function_that_breaks_its_declaration_is_told_so(world):
    whole = get("prompt_counts")
    broken = dataclasses.replace(whole, function=lambda batch: {})
    with pytest.raises(BadDeclaration, match="the function gave nothing"):
        broken.add(world.routes())
    turned = dataclasses.replace(
        whole, function=lambda b: {n: a.mT for n, a in whole.function(b).items() if a.ndim > 1}
    )
    with pytest.raises(BadDeclaration, match=r"declared \(16, 3, 6\) torch.int64, the function gave \(16, 6, 3\)"):
        turned.add(world.routes())


def test_unknown_statistics_name_the_known():
    with pytest.raises(UnknownName, match="prompt_counts"):
        get("promt_counts")


def test_block_sums_refuse_to_give_single_prompts(world):
    state = world.state_of("coactivation_counts", [world.routes()])
    with pytest.raises(NotComparable, match="sums over blocks"):
        state.take([0, 1])


def test_labels_are_the_prompt_sets(world):
    state = world.state_of("prompt_counts", [world.routes()])
    labelled = state.labelled({key: "story" for key in state.prompts.keys})
    assert set(labelled.prompts.categories) == {"story"}
    assert set(state.prompts.categories) == {"a", "b"}
