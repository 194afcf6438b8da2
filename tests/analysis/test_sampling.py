"""A sample of tokens is decided by the tokens alone: not by order, not by batches, not by who saw one twice."""

import dataclasses
import hashlib
import itertools

import pytest
import torch

from analysis.errors import BadDeclaration
from analysis.sampling import bottom, rows_at, token_hash
from analysis.spec import EMPTY
from analysis.statistic import Spec, Statistic, statistic

N = 7
CELL = ("layer", "expert", N)
ARRAYS = {
    "hash": Spec(CELL, torch.int64, "sample"),
    "block": Spec(CELL, torch.int64, "sample"),
    "x": Spec((*CELL, "model"), torch.float32, "sample"),
}


def served_rows(batch):
    """The inputs that each expert served, sampled: the shape any such statistic has."""
    experts, blocks = batch.shape.experts, torch.tensor(batch.prompts.blocks)[batch.keys.prompt]
    hashes = token_hash(batch.prompts, batch.keys)
    token, slot = (batch.served & (batch.indices < experts)).nonzero(as_tuple=True)
    rows = bottom(hashes[token], batch.indices[token, slot], experts, N)
    return {
        "hash": rows_at(hashes[token], rows, EMPTY)[None],
        "block": rows_at(blocks[token], rows, -1)[None],
        "x": rows_at(batch.expert_input[token], rows, torch.nan)[None],
    }


@pytest.fixture
def sample(monkeypatch):
    from analysis import statistic as module

    made = Statistic("served_rows", served_rows, frozenset({"layers"}), ARRAYS)
    known = module.get
    monkeypatch.setattr(module, "get", lambda name: made if name == "served_rows" else known(name))
    return made


def state_of(sample, batches):
    state = sample.empty(batches[0].shape)
    for batch in batches:
        state = sample.merge(state, sample.add(batch))
    return state


def same(one, other):
    for name in ARRAYS:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, equal_nan=True)


def test_the_sample_is_the_smallest_hashes_of_each_expert(sample, world):
    batches = world.layers(lengths=(9,) * 16)
    state = state_of(sample, batches)
    for layer, batch in enumerate(batches):
        hashes = token_hash(batch.prompts, batch.keys)
        for expert in range(6):
            mine = (batch.served & (batch.indices == expert)).any(-1)
            assert state["hash"][layer, expert].tolist() == hashes[mine].sort().values[:N].tolist()
            at = {int(h): row for row, h in enumerate(hashes)}
            rows = [at[h] for h in state["hash"][layer, expert].tolist()]
            assert torch.equal(state["x"][layer, expert], batch.expert_input[rows])


def test_any_cut_in_any_order_gives_the_same_sample(sample, world):
    batches = world.layers()
    whole = state_of(sample, batches)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        part = torch.randint(0, 4, (len(batches[0].keys),), generator=generator)
        pieces = [world.take(b, (part == p).nonzero()[:, 0]) for b in batches for p in range(4)]
        order = torch.randperm(len(pieces), generator=generator).tolist()
        same(whole, state_of(sample, [pieces[i] for i in order]))


def test_a_token_seen_twice_is_kept_once(sample, world):
    batches = world.layers()
    whole = state_of(sample, batches)
    same(whole, state_of(sample, [*batches, *batches]))
    same(whole, sample.merge(whole, whole))


def test_merging_is_commutative_and_associative_and_empty_is_neutral(sample, world):
    parts = [state_of(sample, world.layers(seed, tag=f"{seed}-")) for seed in range(3)]
    whole = state_of(sample, [batch for seed in range(3) for batch in world.layers(seed, tag=f"{seed}-")])
    for x, y, z in itertools.permutations(parts):
        same(whole, sample.merge(x, sample.merge(y, z)))
    same(parts[0], sample.merge(sample.empty(world.SHAPE), parts[0]))


def test_a_block_left_out_of_a_sample_that_is_not_full_was_never_seen(sample, world):
    batches = world.layers(lengths=(1,) * 10)
    whole = state_of(sample, batches)
    assert (whole["hash"] == EMPTY).any(-1).all()
    block = batches[0].prompts.blocks[0]
    kept = [row for row, b in enumerate(batches[0].prompts.blocks) if b != block]
    rest = [dataclasses.replace(world.take(b, kept), prompts=b.prompts.take(kept)) for b in batches]
    rest = [dataclasses.replace(b, keys=dataclasses.replace(b.keys, prompt=torch.arange(len(kept)))) for b in rest]
    same(state_of(sample, rest), whole.without_block(block))


def test_a_full_sample_without_a_block_keeps_the_other_rows(sample, world):
    state = state_of(sample, world.layers(lengths=(40,) * 16))
    block = int(state["block"][0, 0, 0])
    left = state.without_block(block)
    for layer, expert in itertools.product(range(3), range(6)):
        kept = state["block"][layer, expert] != block
        count = int(kept.sum())
        assert torch.equal(left["hash"][layer, expert, :count], state["hash"][layer, expert][kept])
        assert torch.equal(left["x"][layer, expert, :count], state["x"][layer, expert][kept])
        assert (left["hash"][layer, expert, count:] == EMPTY).all() and (
            left["block"][layer, expert, count:] == -1
        ).all()
        assert left["x"][layer, expert, count:].isnan().all()


def test_hashes_are_uniform_and_know_prompt_text_position_and_seed(world):
    batch = world.routes(lengths=(500,) * 16)
    hashes = token_hash(batch.prompts, batch.keys)
    assert int(hashes.min()) >= 0 and int(hashes.max()) < EMPTY and len(hashes.unique()) == 8000
    counts = torch.bincount((hashes.double() / 2.0**63 * 16).long(), minlength=16).double()
    # 15 degrees of freedom: chi-squared stays below 37.7 with probability 0.999.
    assert float(((counts - 500) ** 2 / 500).sum()) < 37.7
    renamed = dataclasses.replace(batch.prompts, ids=("x", *batch.prompts.ids[1:]))
    reworded = dataclasses.replace(batch.prompts, digests=("0" * 64, *batch.prompts.digests[1:]))
    for changed in (token_hash(renamed, batch.keys), token_hash(reworded, batch.keys)):
        assert not (changed[:500] == hashes[:500]).any() and torch.equal(changed[500:], hashes[500:])
    assert not (token_hash(batch.prompts, batch.keys, seed=1) == hashes).any()


def test_a_hash_is_that_of_plain_integers(world):
    batch = world.routes(lengths=(3, 2))
    wrap, expected = 2**64 - 1, []
    for name, digest, length in zip(batch.prompts.ids, batch.prompts.digests, (3, 2), strict=True):
        start = int.from_bytes(hashlib.sha256(repr((0, name, digest)).encode()).digest()[:8], "big")
        for position in range(length):
            z = (start + (position + 1) * 0x9E3779B97F4A7C15) & wrap
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & wrap
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wrap
            expected.append((z ^ (z >> 31)) >> 1)
    assert token_hash(batch.prompts, batch.keys).tolist() == expected


def test_bottom_by_hand():
    hashes, cell = torch.tensor([5, 3, 9, 3, 1, 7]), torch.tensor([0, 0, 0, 0, 2, -1])
    assert bottom(hashes, cell, 3, 2).tolist() == [[1, 0], [-1, -1], [4, -1]]
    assert bottom(hashes[:0], cell[:0], 1, 2).tolist() == [[-1, -1]]
    assert rows_at(torch.tensor([1.0, 2.0])[:0], torch.tensor([[-1]]), 0.5).tolist() == [[0.5]]


def test_a_sample_without_hash_or_block_is_refused():
    def half(batch):
        """Nothing."""

    for missing in ("hash", "block"):
        arrays = {name: spec for name, spec in ARRAYS.items() if name != missing}
        with pytest.raises(BadDeclaration, match="`hash` and `block`"):
            statistic(needs=("layers",), arrays=arrays)(half)


def test_rows_by_token_without_prompt_and_position_are_refused():
    def nobody(batch):
        """Nothing."""

    with pytest.raises(BadDeclaration, match="`prompt`, `position`"):
        statistic(needs=("routes",), arrays={"x": Spec(("token",))})(nobody)
