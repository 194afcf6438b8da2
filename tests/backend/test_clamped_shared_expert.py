"""A shared expert is read with what its own forward puts between its projections, at the weight its block gives it."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import jacobian

from backend.adapters import adapt
from backend.adapters.block import relative_error
from tests.backend import zoo


@pytest.mark.parametrize("kind", ["deepseek_v4", "glm5_next_text"])
def test_the_mean_jacobian_of_a_clamped_shared_expert_is_autograds(kind: str) -> None:
    layer = adapt(zoo.build(kind).double()).layers[-1]
    shared, x = layer.shared(), 3 * torch.randn(6, zoo.MODEL, dtype=torch.float64)
    assert shared is not None
    _, up = shared.preactivations(x)
    assert 0.1 < (up.abs() > zoo.LOW["swiglu_limit"]).double().mean() < 1, "the clamp is under test"
    each = [jacobian(lambda row: layer.shared_alone(row[None])[0], row) for row in x]
    assert relative_error(shared.mean_jacobian(x), torch.stack(each).mean(0)) < 1e-14  # type: ignore[arg-type]


@torch.no_grad()
@pytest.mark.parametrize(("strategy", "weight"), [("average", 0.5), ("sum", 1.0)])
def test_a_block_that_averages_gives_its_shared_expert_half_the_weight(strategy: str, weight: float) -> None:
    model = zoo.build("cohere2_moe")
    for layer in adapt(model).layers:
        layer.block.shared_expert_combination_strategy = strategy  # pyright: ignore[reportArgumentType]
    layer, x = adapt(model).layers[0], torch.randn(4, zoo.MODEL)
    assert layer.shared_weight(x).tolist() == [weight] * 4
    kept: list[torch.Tensor] = []
    layer.experts.register_forward_hook(lambda _, args, out: kept.append(out))  # pyright: ignore
    whole = layer.block(x[None])
    whole = (whole[0] if isinstance(whole, tuple) else whole).reshape(4, -1)
    routed = kept[0].reshape(4, -1)
    assert relative_error(weight * (routed + layer.shared_alone(x)), whole) < 1e-6
