"""Layouts that transformers 5 does not ship: lists of expert modules, and a type it has not heard of."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import OlmoeConfig, OlmoeForCausalLM

from backend.adapters import AdapterLies, Unsupported, adapt
from backend.adapters.law import verify
from backend.capture import verified
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow

TEXT = torch.arange(40, 72)
ASKED = ("a list of experts", "def f(x): return x")
NEEDS = ("routes", "layers", "outputs", "gate", "experts")


class ListedExpert(nn.Module):
    """As transformers 4 had it."""

    def __init__(self, act: Any, gate_up: Tensor, down: Tensor, names: tuple[str, str, str]):
        super().__init__()
        self.act_fn, self.names = act, names
        for name, weight in zip(names, (*gate_up.chunk(2), down), strict=True):
            linear = nn.Linear(*reversed(weight.shape), bias=False)
            linear.weight = nn.Parameter(weight.detach().clone())
            setattr(self, name, linear)

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.act_fn(gate(x)) * up(x))


class ListedBlock(nn.Module):
    """The loop of transformers 4: an expert gets its rows, and its output is multiplied by their weights."""

    def __init__(self, block: Any, names: tuple[str, str, str] = ("w1", "w3", "w2")):
        super().__init__()
        fused, router = block.experts, block.gate
        self.top_k, self.normalise = router.top_k, getattr(router, "norm_topk_prob", True)
        self.gate = nn.Linear(*reversed(router.weight.shape), bias=False)
        self.gate.weight = router.weight
        pairs = zip(fused.gate_up_proj, fused.down_proj, strict=True)
        self.experts = nn.ModuleList(ListedExpert(fused.act_fn, *pair, names) for pair in pairs)
        if hasattr(block, "shared_expert"):
            self.shared_expert, self.shared_expert_gate = block.shared_expert, block.shared_expert_gate

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = self.gate(x).softmax(-1, dtype=torch.float).topk(self.top_k, dim=-1)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        out, mask = torch.zeros_like(x), F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for index, expert in enumerate(self.experts):
            slot, token = torch.where(mask[index])
            out.index_add_(0, token, self.weigh(expert(x[None, token].reshape(-1, x.shape[-1])), weights[token, slot]))
        if hasattr(self, "shared_expert"):
            out = out + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return out.reshape(hidden.shape)

    def weigh(self, out: Tensor, weights: Tensor) -> Tensor:
        return out * weights[:, None].to(out.dtype)


class Einsum(ListedBlock):
    """Weighs in a way that no product shows."""

    def weigh(self, out: Tensor, weights: Tensor) -> Tensor:
        return torch.einsum("nd,n->nd", out, weights)


def listed(model: Any, kind: type[ListedBlock] = ListedBlock, **more: Any) -> Any:
    """The same model with its experts in lists."""
    model = deepcopy(model)
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp = kind(layer.mlp, **more)
    return model.eval()


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_a_list_of_expert_modules_gives_what_the_fused_experts_give(family: str) -> None:
    fused = tiny_moe.build(tiny_moe.FAMILIES[family])
    loose = listed(fused, names=("gate_proj", "up_proj", "down_proj") if family == "qwen2_moe" else ("w1", "w3", "w2"))
    anatomies = [adapt(model) for model in (fused, loose)]
    assert [each.adapter for each in anatomies] == ["fused", "listed"] and anatomies[0].shape == anatomies[1].shape
    for name in ("router_weight", "gate_weight", "up_weight", "down_weight"):
        assert torch.equal(*(each.weights(name) for each in anatomies))
    both = [
        tiny_moe.run(model, anatomy, tiny_moe.prompts(*ASKED), NEEDS)[0]
        for model, anatomy in zip((fused, loose), anatomies, strict=True)
    ]
    assert both[0].notes == both[1].notes == () and both[0].route is not None and both[1].route is not None
    assert torch.equal(both[0].route.indices, both[1].route.indices)
    for one, other in zip(both[0].layers, both[1].layers, strict=True):
        for name in "router_input expert_input logits weights margins output_norms gate_in up_in".split():
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_a_list_of_expert_modules_keeps_the_law(family: str) -> None:
    loose = listed(tiny_moe.build(tiny_moe.FAMILIES[family]))
    found = verify(loose, adapt(loose), TEXT)
    assert max(*found.output_error, *found.jacobian_error) < 1e-5 and found.keeps_shared
    assert max(verify(loose.bfloat16(), adapt(loose), TEXT).output_error) < 1e-2
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loose.modules())


def test_a_list_whose_weights_cannot_be_read_is_refused_with_the_way_out() -> None:
    loose = listed(tiny_moe.build(tiny_moe.mixtral), Einsum)
    with pytest.raises(AdapterLies, match=r"no weight for each row multiplies expert 0's output; describe it in"):
        verify(loose, adapt(loose), TEXT)
    assert loose(TEXT[None]).logits.isfinite().all()  # nothing is left behind


def test_a_list_without_a_known_activation_is_refused_with_the_way_out() -> None:
    loose = listed(tiny_moe.build(tiny_moe.mixtral))
    for expert in loose.model.layers[0].mlp.experts:
        expert.phi = expert.act_fn
        del expert.act_fn
    with pytest.raises(Unsupported, match="keep their activation under none of act_fn, act, activation"):
        adapt(loose)


class UnheardConfig(OlmoeConfig):
    model_type = "unheard_of"


def unheard() -> Any:
    sizes = tiny_moe.SIZES | {"num_experts": tiny_moe.EXPERTS, "intermediate_size": tiny_moe.HIDDEN}
    return tiny_moe.build(lambda: OlmoeForCausalLM(UnheardConfig(**sizes)))


def test_an_unknown_type_is_tried_and_accepted_as_the_law_holds() -> None:
    model = unheard()
    anatomy = adapt(model)
    assert anatomy.adapter == "fused" and verified(anatomy) is None
    tiny_moe.run(model, anatomy, tiny_moe.prompts(*ASKED))
    kept = verified(anatomy)
    assert kept is not None and max(kept.output_error) < 1e-5


def test_an_unknown_type_that_breaks_the_law_is_refused_at_its_first_run() -> None:
    model = unheard()

    class Louder(type(model.model.layers[1].mlp.experts)):
        def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
            return 1.01 * super().forward(x, chosen, weights)

    model.model.layers[1].mlp.experts.__class__ = Louder
    anatomy = adapt(model)
    with pytest.raises(AdapterLies, match=r"layers\.1\.mlp\.experts: the routed output recomputed .* differs"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts(*ASKED))
    assert verified(anatomy) is None
