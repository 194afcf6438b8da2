"""A capture of routes, and of everything, against the plain forward pass of the same batches."""

from __future__ import annotations

from typing import Any

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from backend.prompts import Prompt
from tests.backend.tiny_olmoe import byte_tokenizer
from tests.benchmarks.case import Case, Race

PROMPTS, LENGTH = 16, 256


def model() -> Any:
    """Random weights: 6 layers of 32 experts, 4 chosen."""
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=257,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts=32,
        num_experts_per_tok=4,
        pad_token_id=256,
        eos_token_id=256,
    )
    return OlmoeForCausalLM(config).eval()


def race(needs: frozenset[str]) -> Race:
    """One batch of equal prompts, so that neither side pads."""
    network, tokenizer = model(), byte_tokenizer()
    texts = [chr(97 + i) * LENGTH for i in range(PROMPTS)]
    prompts = [Prompt(f"p{i}", text, "none") for i, text in enumerate(texts)]
    anatomy = adapt(network)
    options = CaptureOptions(batch_tokens=PROMPTS * LENGTH)
    ids = torch.tensor([tokenizer(text)["input_ids"] for text in texts])

    def captured() -> int:
        batches = capture(network, anatomy, tokenizer, prompts, options, needs)
        return sum(len(batch.route.keys) for batch in batches if batch.route is not None)

    @torch.inference_mode()
    def plain() -> int:
        return network(ids).logits.shape[:2].numel()

    return Race(captured, plain, same_tokens)


def same_tokens(mine: int, theirs: int) -> None:
    """Every token is captured once."""
    assert mine == theirs == PROMPTS * LENGTH


# A ratio of 0.5 says: at most twice the time of a plain forward pass.
CASES = (
    Case("capture of routes, 6 layers x 32 experts", "plain forward pass", 0.5, lambda: race(frozenset({"routes"}))),
    Case(
        "capture of routes, layers and output norms",
        "plain forward pass",
        0.25,
        lambda: race(frozenset({"routes", "layers", "outputs"})),
    ),
)
