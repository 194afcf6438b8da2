"""A model spread over several devices: each decoder layer computes where its weights lie, and they stay there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from backend.errors import TooLarge

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

Places = Mapping[int | str, int]
"""Bytes of weights that each device takes: accelerators by number, then "cpu"."""
_DECODER = re.compile(r"(?:.*?\.)?\d+")


def device_map(model: PreTrainedModel, places: Places) -> dict[str, int | str]:
    """Which device each part goes to, whole decoder layers at a time, those of the front first.

    Raises:
        TooLarge: The devices together do not take it.
    """
    from accelerate import infer_auto_device_map

    names = sorted(_decoders(model) | set(getattr(model, "_no_split_modules", None) or ()))
    found: dict[str, int | str] = infer_auto_device_map(model, dict(places), names)  # pyright: ignore
    if "disk" in found.values():
        raise TooLarge(
            f"The devices {', '.join(map(str, places))} do not take {type(model).__name__} in whole decoder layers; "
            "raise MOE_GEOMETRY_MEMORY (bytes) where the machine has more, or set MOE_GEOMETRY_PAGING to always."
        )
    return found


def spread(model: PreTrainedModel, where: Mapping[str, int | str]) -> PreTrainedModel:
    """The model with its parts on these devices: what goes into one is brought to it, and what comes out stays there.

    accelerate's own `dispatch_model` computes on an accelerator alone and carries what lies on the CPU there and back
    for each call; between calls nobody could read such weights.
    """
    from accelerate.hooks import attach_align_device_hook_on_blocks
    from accelerate.utils import find_tied_parameters, retie_parameters

    tied = find_tied_parameters(model)
    first = next((place for place in where.values() if place != "cpu"), "cpu")
    attach_align_device_hook_on_blocks(
        model,
        execution_device={**where, "": first},  # pyright: ignore[reportArgumentType]
        offload=dict.fromkeys(where, False),
    )
    retie_parameters(model, tied)
    return model


def _decoders(model: PreTrainedModel) -> set[str]:
    """Classes of the members of its lists of modules: its decoder layers, and what such lists inside of them hold."""
    return {type(module).__name__ for name, module in model.named_modules() if _DECODER.fullmatch(name)}
