"""Weights stored in 8 or 4 bits: transformers' own code unpacks them as they are loaded, or they are refused.

An expert that stays packed has no matrix that anything here could read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.checkpoints.headers import TensorHeader
from backend.errors import Refusal

UNPACKED = ("fp8", "mxfp4")
_SCALES = ("_scale_inv", "_scales")
_PAIRS = "_blocks"
"""mxfp4 keeps two numbers a byte in tensors called so."""


def packing(raw: Mapping[str, Any], where: str) -> str | None:
    """How a config says its weights are packed, None if they are not; raises `Refusal` for what is not unpacked."""
    said = raw.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, dict) else None
    if said and method not in UNPACKED:
        raise Refusal(
            f"{where} has weights packed by {method or 'a method its config does not name'}; of packed weights only "
            f"{' and '.join(UNPACKED)} are read, unpacked as they are loaded. Name the checkpoint it was made from."
        )
    return method


def parameters(tensors: Mapping[str, TensorHeader]) -> int:
    """Numbers that a model has once unpacked: scales are none of them, and a byte of pairs is two."""
    return sum(
        tensor.count * (2 if name.endswith(_PAIRS) else 1)
        for name, tensor in tensors.items()
        if not name.endswith(_SCALES)
    )


def unpacking(method: str | None) -> dict[str, Any]:
    """What to tell transformers' loader, whatever device it finds."""
    if method is None:
        return {}
    from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

    kind = FineGrainedFP8Config if method == "fp8" else Mxfp4Config
    return {"quantization_config": kind(dequantize=True)}
