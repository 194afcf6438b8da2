"""Prompts of two categories that share no expert."""

import dataclasses

import torch


def planted(world, lengths=(20,) * 16):
    """Category a uses experts 0 to 2 only, category b 3 to 5; all three of each, so no two prompts differ by chance."""
    batch = world.routes(lengths=lengths)
    second = torch.tensor([c == "b" for c in batch.prompts.categories])[batch.keys.prompt]
    indices = batch.indices % 3
    indices[..., 1] = (indices[..., 0] + 1) % 3
    return dataclasses.replace(batch, indices=torch.where(second[None, :, None], indices + 3, indices))


def side_of(batch, world):
    return (world.Inputs(batch.shape, {"prompt_counts": world.state_of("prompt_counts", [batch])}),)
