"""A corpus of random words, small enough to train on for a handful of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from backend.lab.settings import DOMAINS, RunSettings

WORDS = 60
TINY = RunSettings(router="kmeans", seed=0, size="s32", steps=3, balancing=0.01, stored=(0, 2, 3), evaluate_every=2)


def build(folder: Path) -> None:
    """Fill a folder as `lab corpus` does."""
    words = {"<pad>": 0, "<end>": 1} | {f"w{number}": number for number in range(2, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", bos_token="<end>")
    fast.save_pretrained(folder)
    draw = np.random.default_rng(0)
    for domain in DOMAINS:
        for part, count in (("train", 10), ("validation", 3)):
            np.save(folder / f"{part}-{domain}.npy", draw.integers(2, WORDS, (count, 129)).astype(np.uint16))
