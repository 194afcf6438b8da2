"""A router of the lab in a model of transformers: the rest of the model is what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from analysis.errors import GeometryError
from analysis.lab.router import Router
from analysis.lab.routers import router_names, serves_all
from analysis.lab.step import watching
from backend.adapters import adapt
from backend.adapters.anatomy import Unsupported
from backend.adapters.law import verify
from backend.lab.swap import swap_routers
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow

FAMILIES = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "gpt_oss")


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    return getattr(tiny_moe, family)().eval()


def ids() -> torch.Tensor:
    return torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("router", router_names())
@pytest.mark.parametrize("family", FAMILIES)
def test_a_swapped_model_keeps_the_block_law_and_all_that_is_no_router(family: str, router: str) -> None:
    model = model_of(family)
    before = {
        name: value.clone()
        for name, value in model.state_dict().items()
        if name.split(".")[-2] not in ("gate", "router")
    }
    swap_routers(model, router)
    model(input_ids=ids())
    assert all(isinstance(layer.router, Router) for layer in adapt(model).layers)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    if not serves_all(router):  # every expert serves there, which is no top k of this config
        verify(model, adapt(model), ids()[:1])


@pytest.mark.parametrize("router", router_names())
def test_a_model_of_bf16_takes_routers_that_score_in_float32(router: str) -> None:
    model = model_of("mixtral").to(torch.bfloat16)
    swap_routers(model, router)
    assert model(input_ids=ids()).logits.dtype == torch.bfloat16
    assert {layer.router.weight.dtype for layer in adapt(model).layers} == {torch.float32}


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe"])
def test_the_models_own_rule_with_its_own_rows_gives_its_own_logits(family: str) -> None:
    model = model_of(family)
    normalised = bool(getattr(model.config, "norm_topk_prob", True))
    with torch.no_grad():
        own = model(input_ids=ids()).logits
        swap_routers(model, "unbalanced", keep_rows=True, norm_topk_prob=normalised)
        assert_close(model(input_ids=ids()).logits, own, rtol=1e-5, atol=1e-5)
        swap_routers(model, "unbalanced", seed=1, norm_topk_prob=normalised)
        assert not torch.allclose(model(input_ids=ids()).logits, own, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("family", [*FAMILIES, "lab"])
def test_a_swapped_model_reports_the_new_routers_logits_in_the_shape_of_its_own(
    family: str, asked_before: bool
) -> None:
    model = model_of(family)
    shapes = [each.shape for each in model_of(family)(input_ids=ids(), output_router_logits=True).router_logits]
    if asked_before:  # transformers puts its hooks on when it is first asked
        model(input_ids=ids(), output_router_logits=True)
    for router in ("unbalanced", "kmeans"):
        swap_routers(model, router)
        with watching(model) as seen:
            output = model(input_ids=ids(), output_router_logits=True)
        assert [each.shape for each in output.router_logits] == shapes
        assert all(torch.equal(a, b) for a, (b, _, _) in zip(output.router_logits, seen, strict=True))


@pytest.mark.parametrize("router", router_names())
def test_every_routers_logits_are_ones_that_transformers_can_weigh(router: str) -> None:
    model = model_of("olmoe")
    swap_routers(model, router)
    output = model(input_ids=ids(), labels=ids(), output_router_logits=True)
    assert len(output.router_logits) == 3 and torch.isfinite(output.aux_loss) and torch.isfinite(output.loss)


def test_a_swapped_hash_router_follows_the_ids_of_each_call() -> None:
    model = model_of("olmoe")
    swap_routers(model, "hashed")
    layer = adapt(model).layers[1]
    seen: list[torch.Tensor] = []
    layer.router.register_forward_hook(lambda module, args, out: seen.append(out[2]))
    with torch.no_grad():
        model(input_ids=ids())
        model(ids().flip(1))
    table = layer.router.get_buffer("table")
    assert torch.equal(seen[0], table[ids().flatten()])
    assert torch.equal(seen[1], table[ids().flip(1).flatten()])


def test_a_model_whose_router_returns_something_else_is_refused_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("mixtral")
    router = type(adapt(model).layers[0].router)
    monkeypatch.setattr(router, "forward", lambda self, x: torch.nn.functional.linear(x, self.weight))
    with pytest.raises(Unsupported, match=r"takes \[\(4, 8\)\] from its router; a router of the lab returns logits"):
        swap_routers(model, "kmeans")
    assert not any(isinstance(module, Router) for module in model.modules())


def test_what_is_no_router_or_no_option_is_named() -> None:
    with pytest.raises(GeometryError, match="no router to put"):
        swap_routers(model_of("olmoe"), "dense")
    with pytest.raises(
        GeometryError, match="router 'kmeans' has no option 'router_aux_loss_coef'; it has kmeans_centred"
    ):
        swap_routers(model_of("olmoe"), "kmeans", router_aux_loss_coef=1.0)
