"""From a loaded model to where its parts live: the generic adapter, and one small file per family that differs.

A family's file lies in `backend/adapters/families` and defines `find(name, modules, label, top_k) -> MoeLayer | None`;
being there is the whole registration, and it is asked before the generic adapter. A user's own files (`own.py`) are
asked first. A type that nobody knows is tried like any other: the block law decides at its first run.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import nn

from analysis.errors import NoExperts
from analysis.slots import Shape
from backend.adapters import fused, refused
from backend.adapters.anatomy import AdapterLies, Anatomy, MoeLayer, Unsupported
from backend.adapters.own import own_adapters

__all__ = ["AdapterLies", "Anatomy", "MoeLayer", "Unsupported", "adapt"]

Find = Callable[[str, Mapping[str, nn.Module], str, int | None], MoeLayer | None]

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
TOP_K_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts")
_DEAF = re.compile(r"(?:^|[._])(?:vision|visual|audio|talker)")
"""Parts of a model that a pass of text does not run: their experts are left out."""
_INDEX = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|h)\.(\d+)(?:\.|$)")


def adapt(model: nn.Module) -> Anatomy:
    """Where the experts of this model live; reads modules and shapes only, so it works on the meta device too.

    Raises:
        NoExperts: If the model is dense; the text names its type.
        Unsupported: If it has experts in a layout that no adapter reads.
    """
    refused.check(model)
    config: Any = model.config
    text = config.get_text_config()
    modules = dict(model.named_modules())
    hearing = [name for name in modules if name and not _DEAF.search(name)]
    layers = [layer for name in hearing if (layer := _layer(name, modules, text)) is not None]
    kind = config.model_type
    if not layers:
        experts = next((n for key in EXPERT_KEYS if (n := getattr(text, key, 0))), 0)
        if experts and getattr(text, "is_moe", True):
            raise Unsupported(f"{kind} names {experts} experts in its config, but no adapter reads how it stores them")
        raise NoExperts(f"{kind} is a dense model: it has no routed experts to measure")
    return Anatomy(tuple(layers), _shape(layers, kind), kind)


def _finders() -> tuple[Find, ...]:
    """The `find` of each file of the user's, then the families', then the generic one."""
    return (*(module.find for module in own_adapters()), *_families())


@cache
def _families() -> tuple[Find, ...]:
    package = importlib.import_module("backend.adapters.families")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return (*(importlib.import_module(f"{package.__name__}.{name}").find for name in names), fused.find)


def _layer(name: str, modules: Mapping[str, nn.Module], config: Any) -> MoeLayer | None:
    label = _label(name)
    top_k = _top_k(name, modules, config)
    for find in _finders():
        layer = find(name, modules, label, top_k)
        if layer is not None:
            return layer
    return None


def _label(name: str) -> str:
    """Decoder index of a module, from its path; the path itself where it holds none."""
    found = _INDEX.search(name)
    return found.group(1) if found else name


def _top_k(name: str, modules: Mapping[str, nn.Module], config: Any) -> int | None:
    block, label = modules[name.rpartition(".")[0]], _label(name)
    routers = [getattr(block, router, None) for router in fused.ROUTER_NAMES]
    for owner, key in [(o, "top_k") for o in (*routers, block)] + [(config, key) for key in TOP_K_KEYS]:
        value = getattr(owner, key, None)
        if isinstance(value, (list, tuple)):  # hunyuan may list it by layer
            value = value[int(label)] if label.isdecimal() else None
        if isinstance(value, int) and value > 0:
            return value
    return None


def _shape(layers: list[MoeLayer], kind: str) -> Shape:
    sizes = {(layer.size(), layer.top_k) for layer in layers}
    if len(sizes) > 1:
        seen = "; ".join(f"{e} experts, top {k}, width {d}, hidden {h}" for (e, d, h), k in sorted(sizes))
        raise Unsupported(f"{kind} has MoE layers of different sizes ({seen}): one figure cannot hold them all")
    (experts, model, hidden), top_k = sizes.pop()
    if top_k > experts:
        raise Unsupported(f"{kind} says top {top_k} of {experts} experts")
    labels = [layer.label for layer in layers]
    if len(set(labels)) < len(labels):  # two stacks (text and vision): the path tells them apart
        labels = [layer.name for layer in layers]
    return Shape(tuple(labels), experts, top_k, model, hidden, _shared(layers, model))


def _shared(layers: list[MoeLayer], model: int) -> int:
    """Hidden width of the shared expert; 0 where a layer has none, or another's, or one that reads another space."""
    found = [layer.shared() for layer in layers]
    widths = {expert.up.shape if expert is not None else (0, model) for expert in found}
    hidden, width = widths.pop() if len(widths) == 1 else (0, model)
    return hidden if width == model else 0
