"""What states take: flat in tokens, exact from the declaration, and small enough for a real model."""

import dataclasses

import pytest
import torch

from analysis.slots import Shape
from analysis.statistic import get, statistics
from tests.resident import resident_bytes

OLMOE = Shape(tuple(str(layer) for layer in range(16)), experts=64, top_k=8, model=2048, hidden=1024)
"""allenai/OLMoE-1B-7B: 16 layers, 64 experts, 8 a token."""

BY_TOKEN = [name for name, each in statistics().items() if "token" in each.groups]
FLAT = [name for name in statistics() if name not in BY_TOKEN]
TWO_GB, MEGABYTE = 2_000_000_000, 1_000_000


def test_all_statistics_of_olmoe_fit_into_two_gigabytes():
    sizes = {name: get(name).bytes(OLMOE, prompts=80) for name in FLAT}
    assert sum(sizes.values()) < TWO_GB, {name: f"{size / 1e6:.0f} MB" for name, size in sizes.items()}


def test_only_token_routes_grows_with_tokens():
    assert BY_TOKEN == ["token_routes"]


def test_routes_of_many_tokens_take_what_they_say():
    """Two int16 or float16 numbers for each layer and slot, and 28 bytes of keys: 205 MB here."""
    tokens, shape = 131_072, dataclasses.replace(OLMOE, layers=tuple(map(str, range(48))))
    size = get("token_routes").bytes(shape, prompts=64, tokens=tokens)
    assert size == tokens * (48 * 8 * (2 + 2) + 28) == 204_996_608


def held(state):
    return sum(array.numel() * array.element_size() for array in state.arrays.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAT)
def test_a_hundred_times_more_tokens_take_no_more_memory(name, world):
    """Batches of one set of prompts, ever further into it; what a leak of any batch would add is over 10 MB."""
    statistic, sizes, resident = get(name), [], []
    batches = world.batches_for(statistic, lengths=(32,) * 16)
    state = statistic.empty(world.SHAPE)
    for step in range(100):
        for batch in (world.take(batch, range(32 * 16)) for batch in batches):  # a copy, so that keeping it would show
            keys = dataclasses.replace(batch.keys, position=batch.keys.position + 32 * step)
            state = statistic.grow(state, dataclasses.replace(batch, keys=keys))
        sizes.append(held(state))
        resident.append(resident_bytes())
    assert set(sizes) == {statistic.bytes(world.SHAPE, 16)}
    assert min(resident[-10:]) - max(resident[5:15]) < 8 * MEGABYTE


def test_rows_by_token_are_the_tokens_own(world):
    batch = world.routes(lengths=(5, 3, 7))
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    state = world.state_of("token_routes", [world.take(batch, order[:9]), world.take(batch, order[9:])])
    assert torch.equal(state["prompt"], batch.keys.prompt)
    for name in ("position", "token", "next", "predicted"):
        assert torch.equal(state[name].long(), getattr(batch.keys, name))
    assert torch.equal(state["indices"].long(), batch.indices.permute(1, 0, 2))
    torch.testing.assert_close(state["weights"].float(), batch.weights.permute(1, 0, 2), rtol=1e-3, atol=1e-3)


def test_a_prompt_taken_out_takes_its_tokens_with_it(world):
    batch = world.routes(lengths=(5, 3, 7))
    state = world.state_of("token_routes", [batch])
    some = state.take([2, 0])
    assert some.prompts.ids == ("p02", "p00") and some["prompt"].tolist() == [0] * 7 + [1] * 5
    rows = [*range(8, 15), *range(5)]
    assert torch.equal(some["indices"].long(), batch.indices.permute(1, 0, 2)[rows])
    twice = get("token_routes").merge(state, some)
    assert twice["prompt"].tolist() == state["prompt"].tolist() and torch.equal(twice["indices"], state["indices"])
    assert state.take([1])["position"].tolist() == [0, 1, 2]
