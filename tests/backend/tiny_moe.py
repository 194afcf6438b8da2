"""Tiny random models of the families the adapters must read, every tensor filled so that none hides behind a zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from analysis.lab.config import LabMoeConfig
from analysis.lab.model import LabMoeForCausalLM
from analysis.lab.routers import serves_all
from backend.capture import Captured, CaptureOptions, capture
from backend.prompts import Prompt

END = 256
MODEL, HIDDEN, EXPERTS, TOP_K = 32, 24, 8, 2
SIZES: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": MODEL,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": TOP_K,
    "pad_token_id": END,
    "eos_token_id": END,
    "bos_token_id": None,
    "max_position_embeddings": 512,
}


def olmoe() -> Any:
    return OlmoeForCausalLM(OlmoeConfig(**SIZES, num_experts=EXPERTS, intermediate_size=HIDDEN))


def mixtral() -> Any:
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=EXPERTS, intermediate_size=HIDDEN, head_dim=8))


def qwen2_moe() -> Any:
    config = Qwen2MoeConfig(
        **SIZES,
        num_experts=EXPERTS,
        moe_intermediate_size=HIDDEN,
        intermediate_size=40,
        shared_expert_intermediate_size=16,
        mlp_only_layers=[0],
    )
    return Qwen2MoeForCausalLM(config)


def qwen3_moe() -> Any:
    config = Qwen3MoeConfig(
        **SIZES,
        num_experts=EXPERTS,
        moe_intermediate_size=HIDDEN,
        intermediate_size=40,
        head_dim=8,
        norm_topk_prob=True,
    )
    return Qwen3MoeForCausalLM(config)


def deepseek_v3() -> Any:
    config = DeepseekV3Config(
        **SIZES,
        n_routed_experts=EXPERTS,
        moe_intermediate_size=HIDDEN,
        intermediate_size=40,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    )
    return DeepseekV3ForCausalLM(config)


def gpt_oss() -> Any:
    # A limit this low clamps many units, so the clamp is under test too.
    config = GptOssConfig(
        **SIZES, num_local_experts=EXPERTS, intermediate_size=HIDDEN, head_dim=8, swiglu_limit=0.7, sliding_window=16
    )
    return GptOssForCausalLM(config)


def lab(router: str = "loss_free", **more: Any) -> Any:
    sizes = SIZES | {"num_experts_per_tok": EXPERTS if serves_all(router) else TOP_K} | more
    config = LabMoeConfig(**({"num_experts": EXPERTS, "intermediate_size": HIDDEN} | sizes), router=router)
    return LabMoeForCausalLM(config)


FAMILIES: dict[str, Callable[[], Any]] = {
    "olmoe": olmoe,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v3": deepseek_v3,
    "gpt_oss": gpt_oss,
    **{
        f"lab_{name}": lambda name=name: lab(name)
        for name in ("softmax_aux", "loss_free", "kmeans", "soft", "expert_choice")
    },
}


@torch.no_grad()
def build(make: Callable[[], Any], implementation: str = "eager", seed: int = 0) -> Any:
    """The model in evaluation mode, matrices and biases random, norms near one."""
    torch.manual_seed(seed)
    model = fill(make().eval())
    model.set_experts_implementation(implementation)
    return model


@torch.no_grad()
def fill(model: Any) -> Any:
    """Every matrix and bias random, norms left near one."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("e_score_correction_bias", "expert_bias", "balancing_biases")):
            tensor.normal_(0, 0.05)
        elif tensor.is_floating_point() and "inv_freq" not in name and "norm" not in name:
            tensor.normal_(0, 0.02 if "lm_head" in name or "embed" in name else 0.3)
    model.get_input_embeddings().weight.normal_(0, 1)
    return model


def tokenizer(**more: Any) -> PreTrainedTokenizerFast:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)} | {"<end>": END}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<end>", eos_token="<end>", **more)


def prompts(*texts: str) -> list[Prompt]:
    """Prompts named a, b, c ... in two categories."""
    return [Prompt(chr(ord("a") + n), text, ("even", "odd")[n % 2]) for n, text in enumerate(texts)]


def run(
    model: Any, anatomy: Any, asked: Sequence[Prompt], needs: Sequence[str] = ("routes",), **options: Any
) -> list[Captured]:
    """Everything a capture yields."""
    return list(capture(model, anatomy, tokenizer(), asked, CaptureOptions(**options), frozenset(needs)))
