"""A random OLMoE of a few thousand weights with a byte tokenizer, saved as any checkpoint is."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

from backend.prompts import Prompt, PromptSet

CATEGORIES = ("code", "story")


def save(folder: Path, seed: int = 0, **sizes: int) -> Path:
    """Write the checkpoint; another seed is another fingerprint."""
    settings = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2} | sizes
    config = OlmoeConfig(
        vocab_size=257,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        pad_token_id=256,
        eos_token_id=256,
        **settings,
    )
    torch.manual_seed(seed)
    OlmoeForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)} | {"<end>": 256}, merges=[])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<end>", eos_token="<end>")


def prompts(count: int, name: str = "words", length: int = 20, start: int = 0) -> PromptSet:
    """Prompts that all differ, in two categories."""
    rows = [
        Prompt(
            f"p{n}",
            f"Prompt number {n} says {'lorem ipsum ' * (length // 12 + 1)}"[: length + len(str(n))],
            CATEGORIES[n % 2],
        )
        for n in range(start, start + count)
    ]
    return PromptSet(name, tuple(rows), shipped=False)
