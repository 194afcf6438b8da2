"""A user's own architecture by one file in a folder: read, part of every key, refused in a sentence where it lies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backend import question
from backend.adapters import AdapterLies, Unsupported, adapt
from backend.capture import verified
from backend.checkpoints import inspect, load
from backend.settings import Settings
from tests.backend import tiny_moe
from tests.backend.architectures import README

pytestmark = pytest.mark.slow

ASKED = ("a list of experts", "def f(x): return x")
NEEDS = ("routes", "layers", "outputs", "gate", "experts")


TABLE_MODEL = """
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput


class TableConfig(PreTrainedConfig):
    model_type = "my_table"
    vocab_size: int = 257
    hidden_size: int = 16
    intermediate_size: int = 12
    num_hidden_layers: int = 2
    num_experts: int = 4
    num_experts_per_tok: int = 2


class TableExperts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.num_experts, 3, config.intermediate_size, config.hidden_size) / 4)

    def forward(self, x, chosen, weights):
        gate, up, down = self.table[chosen].unbind(2)
        hidden = F.silu(torch.einsum("nd,nkhd->nkh", x, gate)) * torch.einsum("nd,nkhd->nkh", x, up)
        return torch.einsum("nkh,nkhd,nk->nd", hidden, down, weights)


class TableBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.router = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts, self.k = TableExperts(config), config.num_experts_per_tok

    def forward(self, x):
        weights, chosen = self.router(x.reshape(-1, x.shape[-1])).softmax(-1).topk(self.k)
        return self.experts(x.reshape(-1, x.shape[-1]), chosen, weights).view(x.shape)


class TableForCausalLM(PreTrainedModel):
    config_class = TableConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TableBlock(config) for _ in range(config.num_hidden_layers))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, attention_mask=None, use_cache=False):
        x = self.embed(input_ids)
        for block in self.layers:
            x = x + block(x)
        return CausalLMOutput(logits=self.lm_head(x))


AutoConfig.register("my_table", TableConfig)
AutoModelForCausalLM.register(TableConfig, TableForCausalLM)
"""


def adapter_of_the_readme() -> str:
    section = README.read_text().split("### A model of your own")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    return code


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the README's adapter and the model it is for; another type's may lie beside it."""
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "table.py").write_text(adapter_of_the_readme() + TABLE_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOE_GEOMETRY_ADAPTERS", str(folder))
        question.tracing_code.cache_clear()
        yield folder
    question.tracing_code.cache_clear()


@pytest.fixture(scope="module")
def saved(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from backend.adapters.own import own_adapters

    (module,) = own_adapters()
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "mine"
    module.TableForCausalLM(module.TableConfig()).save_pretrained(folder)
    return folder


def test_a_users_own_file_is_all_that_a_checkpoint_of_his_needs(saved: Path) -> None:
    found = inspect(str(saved), Settings(extra_roots=(saved.parent,)))
    assert (found.adapter, found.architecture, found.dense) == ("table", "my_table", False)
    assert (found.moe_layers, found.experts, found.top_k, found.model, found.hidden) == (2, 4, 2, 16, 12)
    model = load(found, "cpu")
    anatomy = adapt(model)
    assert anatomy.adapter == "table" and anatomy.shape.layers == ("0", "1")
    (captured,) = tiny_moe.run(model, anatomy, tiny_moe.prompts(*ASKED), NEEDS)
    law = verified(anatomy)
    assert law is not None and max(*law.output_error, *law.jacobian_error) < 1e-5
    assert captured.route is not None
    for n, block in enumerate(model.layers):
        batch: Any = captured.layers[n]
        weights, chosen = block.router(batch.router_input).softmax(-1).topk(2)
        assert torch.equal(captured.route.indices[n], chosen)
        torch.testing.assert_close(batch.weights, weights.detach())


def test_the_code_of_a_users_file_is_part_of_every_key(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = question.tracing_code()
    monkeypatch.delenv("MOE_GEOMETRY_ADAPTERS")
    question.tracing_code.cache_clear()
    assert question.tracing_code() != with_it
    question.tracing_code.cache_clear()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\n", r"wrong\.py defines no find\(name, modules, label, top_k\)"),
        ("import nowhere_at_all\n", r"wrong\.py cannot be imported: ModuleNotFoundError: .*nowhere_at_all"),
        (None, r"adapters, which is no folder; it must hold one \.py file an architecture"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(
    source: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "adapters"
    if source is not None:
        folder.mkdir()
        (folder / "wrong.py").write_text(source)
    monkeypatch.setenv("MOE_GEOMETRY_ADAPTERS", str(folder))
    with pytest.raises(Unsupported, match=told):
        adapt(tiny_moe.build(tiny_moe.olmoe))


LIE = """
from backend.adapters import fused

class Lie(fused.FusedLayer):
    def down(self):
        return super().down().flip(0)

def find(*asked):
    found = fused.find(*asked)
    return found and Lie(*(getattr(found, name) for name in found.__match_args__))
"""


def test_a_users_file_that_lies_is_caught_before_any_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lie.py").write_text(LIE)
    monkeypatch.setenv("MOE_GEOMETRY_ADAPTERS", str(tmp_path))
    model = tiny_moe.build(tiny_moe.olmoe)
    anatomy = adapt(model)
    assert anatomy.adapter == "lie"
    with pytest.raises(AdapterLies, match="recomputed"):
        tiny_moe.run(model, anatomy, tiny_moe.prompts(*ASKED))
