"""A capture of routes, and of everything, against the plain forward pass of the same batches."""

from __future__ import annotations

from typing import Any

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

from analysis.statistic import get, statistics
from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from backend.prompts import Prompt
from tests.backend.tiny_olmoe import byte_tokenizer
from tests.benchmarks.case import Case, Race

PROMPTS, LENGTH = 16, 256
OF_ROUTES = {name for name, statistic in statistics().items() if statistic.needs == {"routes"}}


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


def statistics_of_routes(*names: str) -> Race:
    """Capture of the routes and these statistics of them."""
    made = race(frozenset({"routes"}))
    network, tokenizer = model(), byte_tokenizer()
    prompts = [Prompt(f"p{i}", chr(97 + i) * LENGTH, "none") for i in range(PROMPTS)]
    anatomy, options = adapt(network), CaptureOptions(batch_tokens=PROMPTS * LENGTH)
    wanted = [get(name) for name in names]

    def counted() -> int:
        tokens = 0
        for batch in capture(network, anatomy, tokenizer, prompts, options, frozenset({"routes"})):
            assert batch.route is not None
            tokens += int(wanted[0].add(batch.route)["tokens"].sum())
            for statistic in wanted[1:]:
                statistic.add(batch.route)
        return tokens

    return Race(counted, made.other, same_tokens)


# Overheads: how many times a plain pass each takes.
CASES = (
    Case(
        "load and co-activation counts, 6 layers x 32 experts",
        "plain forward pass, 41 pairs",
        1.10,
        lambda: statistics_of_routes("prompt_counts", "coactivation_counts"),
        41,
        overhead=True,
        lower_end=1.05,
    ),
    Case(
        "all five statistics of routes, which a first question keeps",
        "plain forward pass, 41 pairs",
        None,
        lambda: statistics_of_routes("prompt_counts", *sorted(OF_ROUTES - {"prompt_counts"})),
        41,
        overhead=True,
    ),
    Case(
        "capture of routes alone",
        "plain forward pass",
        2.0,
        lambda: race(frozenset({"routes"})),
        overhead=True,
    ),
    Case(
        "capture of routes, layers and output norms",
        "plain forward pass",
        4.0,
        lambda: race(frozenset({"routes", "layers", "outputs"})),
        overhead=True,
    ),
)
