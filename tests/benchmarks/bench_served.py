"""What the statistics over served tokens cost on top of one block's own forward pass.

One OLMoE block: model 2048, hidden 1024, 64 experts, 8 chosen, 512 tokens. Only what is summed over served tokens, as
the capture and the statistics do it: the common tokens, on which all experts are asked, cost what they cost beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import OlmoeConfig, OlmoeForCausalLM

from analysis.slots import LayerBatch, Prompts, TokenKeys, text_digest
from analysis.statistic import get
from analysis.statistics.output_sums import served_outputs
from analysis.statistics.slope_sums import served_slopes
from backend.adapters import adapt
from backend.adapters.anatomy import Anatomy
from backend.adapters.fused import FusedLayer
from backend.adapters.watch import Extra, watch
from backend.capture.assemble import layer_batch, routed_of, with_experts
from tests.benchmarks.case import Case, Race

TOKENS, PROMPTS = 512, 8


@dataclass(frozen=True, eq=False)
class Unseen(FusedLayer):
    """A layer whose activations cannot be told apart in flight, so that they are computed once more."""

    def flight_order(self, indices: Tensor, pieces: int) -> None:
        """Unknown."""


def anatomy() -> Anatomy:
    """One layer of random weights; the rest of the model is as small as it can be."""
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=8,
        hidden_size=2048,
        intermediate_size=1024,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_experts=64,
        num_experts_per_tok=8,
        pad_token_id=0,
        eos_token_id=0,
    )
    return adapt(OlmoeForCausalLM(config).eval())


def tokens() -> tuple[Prompts, TokenKeys]:
    """Eight prompts of equal length."""
    ids = tuple(f"p{i}" for i in range(PROMPTS))
    nothing, each = torch.zeros(TOKENS, dtype=torch.long), TOKENS // PROMPTS
    place = torch.arange(TOKENS)
    keys = TokenKeys(place // each, place % each, *[nothing] * 5, span=torch.zeros(TOKENS, 2, dtype=torch.long))
    return Prompts(ids, tuple(map(text_digest, ids)), ("none",) * PROMPTS), keys


def race(seen: bool, norms: bool) -> Race:
    """Forward of the block under watch and the statistics, against its forward alone."""
    whole, keys = anatomy(), tokens()
    layer: Any = whole.layers[0]
    if not seen:
        names = ("label", "name", "experts", "router", "block", "top_k")
        layer = Unseen(**{name: getattr(layer, name) for name in names})
        whole = Anatomy((layer,), whole.shape, whole.model_type)
    x = torch.randn(1, TOKENS, whole.shape.model, generator=torch.Generator().manual_seed(0))
    rows, extra = torch.arange(TOKENS), Extra(norms=norms, gate=True)
    plain = [get(name) for name in ("router_sums", "centroid_sums", "score_gate_pairs", "routed_rows")]

    @torch.no_grad()
    def ours() -> Tensor:
        with watch(whole, rows, TOKENS, extra) as traces:
            out = layer.block(x)
        batch = with_experts(layer, layer_batch(whole, 0, keys, traces[0], routed_of(layer, traces[0])))
        count(batch)
        return out

    def count(batch: LayerBatch) -> None:
        for statistic in plain:
            statistic.function(batch)
        served_slopes(batch)
        if norms:
            get("contribution_sums").function(batch)
            served_outputs(batch)

    @torch.no_grad()
    def other() -> Tensor:
        return layer.block(x)

    return Race(ours, other, same)


def same(mine: Any, theirs: Any) -> None:
    """To be watched changes nothing, not even a bit."""
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


FORWARD = "the block's own forward pass"
CASES = (
    Case("served tokens, gate in flight", FORWARD, 1.35, lambda: race(True, False), 15, overhead=True),
    Case("served tokens, gate and output norms in flight", FORWARD, 1.70, lambda: race(True, True), 15, overhead=True),
    Case("served tokens, gate recomputed", FORWARD, 2.20, lambda: race(False, False), 15, overhead=True),
    Case("served tokens, all recomputed", FORWARD, 2.60, lambda: race(False, True), 15, overhead=True),
)
