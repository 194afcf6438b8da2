"""What no adapter reads, with the reason: model types, and ways of loading that hide the routing."""

from __future__ import annotations

from typing import Any

from backend.adapters.anatomy import Unsupported

TYPES = {
    "doge": (
        "doge has no rows of experts to measure: its experts are single numbers' worth of an embedding, found by a "
        "product of two short keys, and its router mixes tokens"
    ),
    "nllb-moe": (
        "nllb-moe is broken in transformers 5.24: whatever its router chooses, only experts 0 and 1 are run, so a "
        "figure would show a routing that never happened"
    ),
    "diffusion_gemma": (
        "diffusion_gemma writes by denoising a canvas beside the prompt: its experts see the canvas's tokens, which "
        "are not those of any prompt"
    ),
    "inkling2_loop_text": (
        "inkling2_loop runs the same layers several times in one pass: a token has several routings in one layer, "
        "and no figure has room for more than one"
    ),
}
TYPES["inkling2_loop"] = TYPES["inkling2_loop_text"]
"""By model type: what no figure would be true of, whatever its checkpoint."""


def check(model: Any) -> None:
    """Raise `Unsupported`, with a sentence that says why, for a model of which no figure would be true."""
    kind = model.config.model_type
    if kind in TYPES and getattr(model.config, "is_moe", True):  # a doge may be dense
        raise Unsupported(TYPES[kind])
    if getattr(model, "use_kernels", False):
        raise Unsupported(
            f"this {kind} was loaded with kernels that pass by its router: what they choose cannot be read. Load it "
            "with use_kernels=False"
        )
