"""A device without memory for a batch: the batch is halved, nothing is lost, counted twice or left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from tests.backend import tiny_moe
from tests.backend.test_capture import by_prompt, hooks_of

TEXTS = ("a cat", "2+2=4 and more", "once upon a time", "for n in range(9): print(n)", "")


@contextmanager
def room_for(model: Any, tokens: int) -> Iterator[list[int]]:
    """A device that has memory for so many tokens: the last layer of a larger pass fails. Lists every pass tried."""
    tried: list[int] = []

    def fail(module: Any, args: tuple[torch.Tensor, ...], output: Any) -> None:
        tried.append(args[0].shape[0] * args[0].shape[1])
        if tried[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = model.model.layers[-1].register_forward_hook(fail)
    try:
        yield tried
    finally:
        handle.remove()


@pytest.mark.parametrize("generate", [0, 2])
def test_halved_batches_give_every_prompt_once_as_one_batch_did(generate: int) -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    anatomy, asked = adapt(model), tiny_moe.prompts(*TEXTS)
    whole = tiny_moe.run(model, anatomy, asked, generate=generate)
    hooks = hooks_of(model)
    with room_for(model, 60) as tried:
        halved = tiny_moe.run(model, anatomy, asked, generate=generate)
    assert len(whole) == 1 and len(halved) > 1 and max(tried) > 60 and hooks_of(model) == hooks
    one, many = by_prompt(whole), by_prompt(halved)
    assert one.keys() == many.keys() and sum(len(c.route.prompts) for c in halved if c.route) == len(TEXTS)
    for name, routes in one.items():
        assert torch.equal(routes["indices"].sort(-1).values, many[name]["indices"].sort(-1).values)
    notes = [note for each in halved for note in each.notes if "no memory" in note]
    assert notes and not [note for each in whole for note in each.notes if "no memory" in note]


def test_later_batches_stay_below_the_size_that_was_too_much() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    asked, anatomy = tiny_moe.prompts(*["x" * 10] * 16), adapt(model)
    tiny_moe.run(model, anatomy, asked[:1])  # the first pass of an anatomy is held to the block law
    with room_for(model, 45) as tried:
        found = tiny_moe.run(model, anatomy, asked, batch_tokens=80)
    assert tried == [80, 40, 40, 40, 40] and len(found) == 4


def test_a_prompt_that_does_not_fit_alone_is_refused_by_the_devices_own_error() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    options = CaptureOptions()
    with room_for(model, 20), pytest.raises(torch.OutOfMemoryError):
        list(
            capture(
                model, adapt(model), tiny_moe.tokenizer(), tiny_moe.prompts("x" * 21), options, frozenset({"routes"})
            )
        )
    assert not hooks_of(model)
