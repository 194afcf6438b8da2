"""A tiny random model of every MoE type of the pinned transformers, from its config class and one table of sizes."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

from backend.adapters import refused
from tests.backend import tiny_moe

MODEL, HIDDEN, EXPERTS, TOP_K = 32, 24, 8, 2
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size"), 257),  # bytes and an end
    "max_position_embeddings": 64,
    **dict.fromkeys(("hidden_size", "d_model", "moe_hidden_size"), MODEL),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size", "d_ff"), HIDDEN),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), TOP_K),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_group"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads"), 4),
    **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 4),
    **dict.fromkeys(("head_dim", "swa_head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "index_head_dim", "linear_head_dim", "d_rel"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "d_kv", "o_lora_rank"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads", "index_n_heads"), 2),
    **dict.fromkeys(("topk_group", "first_k_dense_replace", "num_dense_layers", "bos_token_id"), 1),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size", "sliding_window"), 16),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "share_expert_dim", "sliding_window_size"), 16),
    **dict.fromkeys(("shared_experts_intermediate_size", "prefix_dense_intermediate_size"), 16),
    **dict.fromkeys(("ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size"), 40),
    **dict.fromkeys(("index_topk", "hc_mult"), 4),
    **{"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0},
}
"""Whatever a config class has of these is set so."""

FULL, SPARSE = ["full_attention"] * 2, ["sparse"] * 2
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
LOW = {"swiglu_limit": 0.7}
"""A limit this low clamps many units, so the clamp is under test too."""
MORE: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2, "linear_num_heads": 4},
    **{kind: {"mlp_layer_types": SPARSE} for kind in ("beam", "cohere2_moe", "deepseek_ocr2_text", "step3p5")},
    "dbrx": {
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 4, "clip_qkv": 8.0, "rope_theta": 1e4},  # without a clip its attention fails
        "ffn_config": {
            "hidden_size": MODEL,
            "ffn_hidden_size": HIDDEN,
            "moe_num_experts": EXPERTS,
            "moe_top_k": TOP_K,
            "ffn_act_fn": {"name": "silu"},
        },
    },
    "doge": {"is_moe": True, "num_experts": 16},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [HIDDEN, 20], "rope_parameters": MROPE},
    "flint": {"mlp_only_layers": []},
    "gemma4_text": {"enable_moe_block": True, "hidden_size_per_layer_input": 0, "layer_types": FULL},
    "diffusion_gemma_text": {"layer_types": FULL},
    "glm4v_moe_text": {"num_attention_heads": 2, "num_key_value_heads": 2, "rope_parameters": MROPE},
    "granitemoehybrid": {"layer_types": ["attention"] * 2, "mamba_n_heads": 4, "mamba_d_state": 8},
    **{kind: LOW for kind in ("gpt_oss", "openai_privacy_filter", "minimax_m3_vl_text", "deepseek_v4", "hy_v4")},
    "hy_v4_vl_text": LOW | {"rope_parameters": MROPE},
    "glm5_next_text": LOW | {"index_kpool": 2, "qk_rope_head_dim": 0, "head_dim": 0, "mlp_layer_types": SPARSE},
    "jamba": {"attn_layer_period": 1, "attn_layer_offset": 0, "expert_layer_period": 1, "expert_layer_offset": 0},
    "laguna": {"moe_router_logit_softcapping": 3.0, "moe_routed_scaling_factor": 1.5},
    "lfm2_moe": {"layer_types": FULL},
    "llama4_text": {"num_experts_per_tok": 1},
    "longcat_flash": {"zero_expert_num": 4, "moe_topk": 3},
    "mimo_v2_flash": {"num_key_value_heads": 2},
    "nemotron_h": {"layers_block_type": ["attention", "moe"]},
    "switch_transformers": {
        "num_sparse_encoder_layers": 1,
        "num_decoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "expert_capacity": 4,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 12},
}
"""What a type needs beside."""

VERIFIED = (
    "afmoe axk1 bailing_hybrid cohere2_moe dbrx deepseek_v2 deepseek_v3 deepseek_v4 dots1 ernie4_5_moe exaone_moe "
    "flex_olmo flint gemma4_text glm4_moe glm4_moe_lite gpt_oss granitemoe granitemoe_swa granitemoehybrid "
    "granitemoeshared hunyuan_v1_moe hy_v3 inkling2_text jamba jetmoe kolibri1 laguna lara_mini lfm2_moe llama4_text "
    "longcat_flash mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text mistral4 mixtral nemotron_h olmoe "
    "openai_privacy_filter phimoe qwen2_moe qwen3_5_moe_text qwen3_moe qwen3_next solar_open switch_transformers zaya"
).split()
READ_ONLY = (
    "aria_text axk2 beam deepseek_ocr2_text deepseek_v32 diffusion_gemma_text dots3_note_text ernie4_5_vl_moe_text "
    "glm4v_moe_text glm5_next_text glm_moe_dsa hy_v4 hy_v4_vl_text inkling_text kimi_linear mistral_large4_text "
    "qwen3_omni_moe_text qwen3_vl_moe_text qwen4_exp_text sarvam_mla sarvam_moe step3p5 unlimited_ocr_text"
).split()
BUILT_AND_REFUSED = "doge inkling2_loop_text muse_spark_text nllb-moe".split()
KINDS = tuple(sorted({*VERIFIED, *READ_ONLY, *BUILT_AND_REFUSED, *refused.TYPES}))


def config_of(kind: str) -> Any:
    """The smallest config of this type."""
    config_class = CONFIG_MAPPING[kind]
    sizes = {name: value for name, value in SIZES.items() if name in config_class.__dataclass_fields__}
    return config_class(**(sizes | MORE.get(kind, {})))


def class_of(config: Any, head: bool = False) -> Any:
    """The model class of a config, with its language-model head where it has one and that is asked for.

    It is what AutoModel knows, else the text model of the config's file.
    """
    if head and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if type(config) in MODEL_MAPPING:
        return MODEL_MAPPING[type(config)]
    file = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    models = [each for each in vars(file).values() if getattr(each, "config_class", None) is type(config)]
    return next(each for each in models if each.__name__.endswith("TextModel"))


def whole(kind: str, head: bool = False) -> Any:
    """The model, in evaluation mode, every matrix and bias random: none hides behind a zero."""
    config = config_of(kind)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = tiny_moe.fill(class_of(config, head)(config).eval())
    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):  # deepseek_v4 chooses by token id in its first layers
            table.copy_(torch.rand(len(table), EXPERTS).argsort(-1)[:, : table.shape[1]])
    return model


IMAGES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": MODEL}
IMAGES |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16, "image_size": 28}


def with_images(kind: str) -> Any:
    """A model of text and images whose text part is the type of that name with `_text`."""
    text, config_class = config_of(f"{kind}_text").to_dict(), CONFIG_MAPPING[kind]
    images = type(config_class(text_config=text).vision_config)
    sizes = {name: value for name, value in IMAGES.items() if name in images.__dataclass_fields__}
    config = config_class(text_config=text, vision_config=sizes | {"model_type": images.model_type})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return tiny_moe.fill(class_of(config)(config).eval())


def build(kind: str) -> Any:
    """The part of it that reads a prompt."""
    model = whole(kind)
    return model.get_encoder() if model.config.is_encoder_decoder else model
