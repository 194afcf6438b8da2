"""A checkpoint of random weights in a published layout: to try a command on before the real one is there.

It says of itself that it was never trained, and every number from it carries that mark.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from backend.checkpoints.facts import RANDOM, WEIGHTS
from backend.errors import Conflict, NotFound, Refusal
from backend.lab.model_files import TOKENIZER_FILES, vocabulary

LAYOUTS = {
    "olmoe": ("allenai/OLMoE-1B-7B", {"expert": "intermediate_size", "experts": "num_experts"}),
    "mixtral": ("mistralai/Mixtral-8x7B", {"expert": "intermediate_size", "experts": "num_local_experts"}),
    "qwen2_moe": ("Qwen/Qwen1.5-MoE-A2.7B", {"expert": "moe_intermediate_size", "experts": "num_experts"}),
}
"""Whose layout each is, and its own names for the width and the number of experts."""


@dataclass(frozen=True)
class Sizes:
    """Of the model to write; the defaults make a few hundred thousand parameters."""

    model: int = 64
    expert: int = 32
    experts: int = 8
    layers: int = 2
    top_k: int = 2
    heads: int = 4


def write_untrained(layout: str, target: Path, tokenizer: Path, sizes: Sizes, seed: int = 0, dtype: str = "") -> int:
    """Write such a checkpoint with the tokenizer of a folder beside it; its number of parameters.

    Raises:
        NotFound: The layout is none of `LAYOUTS`.
        Refusal: Sizes that do not fit each other.
        Conflict: There is something at `target` already.
    """
    if layout not in LAYOUTS:
        raise NotFound(f"There is no layout {layout!r}; there are {', '.join(LAYOUTS)}.", list(LAYOUTS))
    if sizes.model % (2 * sizes.heads) or not 1 <= sizes.top_k <= sizes.experts:
        raise Refusal(f"{asdict(sizes)}: model must be a multiple of 2 x heads, and top_k from 1 to experts.")
    if target.exists():
        raise Conflict(f"{target} is there already; name a folder that is not.")
    model = _model(layout, sizes, tokenizer, seed, getattr(torch, dtype or "float32"))
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, partial / name)
    partial.rename(target)
    return model.num_parameters()


def _model(layout: str, sizes: Sizes, tokenizer: Path, seed: int, dtype: torch.dtype) -> Any:
    words = vocabulary(tokenizer)
    own = {name: getattr(sizes, ours) for ours, name in LAYOUTS[layout][1].items()}
    if layout == "qwen2_moe":
        own |= {"shared_expert_intermediate_size": sizes.expert, "intermediate_size": sizes.expert}
    kind: Any = CONFIG_MAPPING[layout]
    config = kind(
        vocab_size=words.size,
        pad_token_id=words.pad,
        bos_token_id=words.bos,
        eos_token_id=words.eos,
        hidden_size=sizes.model,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        num_experts_per_tok=sizes.top_k,
        **own,
        **{WEIGHTS: RANDOM},
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)
