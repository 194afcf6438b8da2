"""What config and headers say of a model: architecture, experts, sizes, memory.

Nothing is loaded, and no code of the folder is run.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.checkpoints.architectures import architecture
from backend.checkpoints.headers import BITS, TensorHeader, named
from backend.checkpoints.packed import packing
from backend.checkpoints.packed import parameters as packed_parameters
from backend.errors import Refusal

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "n_experts")
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "num_selected_experts",
    "moe_topk",
    "moe_top_k",
    "top_k_experts",
    "moe_k",
    "top_k",
)
HIDDEN = (
    "moe_intermediate_size",
    "expert_ffn_hidden_size",
    "expert_hidden_size",
    "moe_ffn_hidden_size",
    "intermediate_size",
    "ffn_dim",
    "ffn_hidden_size",
    "d_ff",
)
"""Names under which configs keep the number of routed experts, of experts per token, and an expert's width.

The first found counts.
"""
FIXED_TOP_K = {"switch_transformers": 1}
"""Types whose routers know one number of experts per token, which no config names."""

WEIGHTS, RANDOM = "moe_geometry_weights", "random"
"""What `lab untrained` writes into a config, so that nobody takes its numbers for a model's."""

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_MOST = 10_000_000
_EXPERT_LAYER = re.compile(r"(?:layers|layer|blocks|block|h)\.(\d+)\.(?:.*\.)?experts\.")


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; raises `Refusal` saying what the folder is, if it is no checkpoint."""
    path = folder / "config.json"
    if not path.is_file():
        names = sorted(p.name for p in folder.iterdir())
        raise Refusal(f"{folder} is no checkpoint: it has no config.json. It holds {named(names)}.")
    if path.stat().st_size > _MOST:
        raise Refusal(f"{path} has {path.stat().st_size:,} bytes; a config has at most {_MOST:,}.")
    return parse_config(path, str(path))


def parse_config(path: Path, where: str) -> dict[str, Any]:
    """The object that a config.json holds; raises `Refusal` if it is none or names no model."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise Refusal(f"{where} is not JSON: {error}.") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise Refusal(f'{where} names no `model_type`; it must be an object such as {{"model_type": "olmoe", ...}}.')
    return config


def facts(raw: Mapping[str, Any], tensors: Mapping[str, TensorHeader], where: str) -> dict[str, Any]:
    """The fields of `Checkpoint` that config and headers decide; raises `Refusal` for an architecture nobody knows."""
    config = typed(raw, where)
    text = config.get_text_config()
    experts = _whole(text, EXPERTS) if getattr(text, "is_moe", True) else 0
    dense = experts <= 1
    adapter = None if dense else _adapter(config, text)
    packed = packing(raw, where)
    parameters = packed_parameters(tensors) if packed else sum(t.count for t in tensors.values())
    stored = packed or _stored_dtype(tensors)
    precision = str(getattr(config, "dtype", None) or ("bfloat16" if packed else stored)).removeprefix("torch.")
    width = WIDTH.get(precision, 4)
    layers = _whole(text, ("num_hidden_layers", "n_layer", "num_layers"))
    top_k = 0 if dense else _whole(text, TOP_K) or FIXED_TOP_K.get(text.model_type, 0)
    if top_k > experts and not getattr(text, "zero_expert_num", 0):  # identity experts can be chosen too
        key = next((name for name in TOP_K if isinstance(getattr(text, name, None), int)), "the number chosen")
        raise Refusal(f"{where} has {key} {top_k} in its config.json and {experts} experts; it must be 1 to {experts}.")
    return {
        "architecture": raw["model_type"],
        "router": raw.get("router") if raw["model_type"] == _lab_type() else None,
        "dense": dense,
        "layers": layers,
        "moe_layers": 0 if dense else len(_expert_layers(tensors, config.is_encoder_decoder)) or layers,
        "experts": 0 if dense else experts,
        "top_k": top_k,
        "soft": not dense and top_k == experts,
        "model": _whole(text, ("hidden_size", "n_embd", "d_model")),
        "hidden": _whole(text, HIDDEN),
        "dtype": stored,
        "precision": precision,
        "parameters": parameters,
        "memory_bytes": parameters * width,
        "weight_bytes": sum(t.count * BITS[t.dtype] for t in tensors.values()) // 8,
        "adapter": adapter,
        "random_weights": raw.get(WEIGHTS) == RANDOM,
    }


def _adapter(config: Any, text: Any) -> str:
    """Who will read it; a type that nobody measured is tried with the generic adapter."""
    from backend.adapters.own import PACKAGE

    found = architecture(config.model_type, text.model_type)
    if found is not None and not found.supported:
        raise Refusal(found.remarks)
    package, _, name = type(config).__module__.partition(".")
    if package == PACKAGE:
        return name
    return "fused" if found is None or found.adapter is None else found.adapter


def typed(raw: Mapping[str, Any], where: str) -> Any:
    """The config as its own class; raises `Refusal` for a type that is not known, or values it does not take."""
    from transformers.configuration_utils import PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from analysis.lab.config import register
    from backend.adapters.own import own_adapters

    register()
    own_adapters()
    kind = raw["model_type"]
    if kind not in CONFIG_MAPPING:
        remote = " It asks for code of its own (auto_map), which is never run." if raw.get("auto_map") else ""
        raise Refusal(f"{where} is of type {kind!r}, which the installed transformers does not know.{remote}")
    try:
        # JSON knows no infinity, so transformers writes it as an object.
        values = PreTrainedConfig._decode_special_floats({k: v for k, v in raw.items() if k != "auto_map"})
        return CONFIG_MAPPING[kind].from_dict(values)
    except Exception as error:  # transformers validates configs with many exception types
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refusal(f"{where} has a config that {kind} refuses: {first}") from error


def _lab_type() -> str:
    from analysis.lab.config import MODEL_TYPE

    return MODEL_TYPE


def _whole(config: Any, names: tuple[str, ...]) -> int:
    owners = (config, getattr(config, "ffn_config", None))  # dbrx keeps its experts' sizes one level down
    for owner, name in itertools.product(owners, names):
        value = getattr(owner, name, None)
        if isinstance(value, list | tuple) and value:  # some families keep one number per layer
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _expert_layers(tensors: Mapping[str, TensorHeader], two_stacks: bool) -> set[str]:
    read = [name for name in tensors if not (two_stacks and name.startswith("decoder."))]  # the encoder reads prompts
    return {found[1] for name in read if (found := _EXPERT_LAYER.search(name))}


def _stored_dtype(tensors: Mapping[str, TensorHeader]) -> str:
    bits = Counter[str]()
    for tensor in tensors.values():
        bits[tensor.dtype] += tensor.count * BITS[tensor.dtype]
    [(most, _)] = bits.most_common(1)
    return _DTYPES.get(most, most.lower())
