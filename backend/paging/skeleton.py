"""A model whose decoder layers have shapes and no numbers, built by transformers' own `from_pretrained`.

Config, dtype, quantiser, conversions and everything outside of the layers come about as in any other load. What is
left out is the reading of the layers' tensors: two steps of that method are overridden in a subclass that lives no
longer than the load. Both are internal to transformers, whose minor version is pinned, and a test holds every bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from analysis.errors import GeometryError
from backend.adapters import adapt
from backend.checkpoints.facts import typed
from backend.checkpoints.soundness import check_finite, check_shapes
from backend.paging.weights import WeightFiles


class Unpageable(GeometryError):
    """Raised when a model cannot be run one layer at a time; the text says why and what would help."""


WHOLE = "run it whole (MOE_GEOMETRY_PAGING=never), on a machine that holds it"


@dataclass
class Skeleton:
    """The model, its decoder layers, and which tensors on disk belong to each of them.

    `targets` are the parameters each tensor goes into, as transformers renames it; `config` what it converts with.
    """

    model: Any
    files: WeightFiles
    config: Any = None
    body: str = ""
    keys: list[list[str]] = field(default_factory=list)
    targets: dict[str, str] = field(default_factory=dict)

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, first to last."""
        found = self.model.get_submodule(self.body)
        assert isinstance(found, nn.ModuleList)
        return found

    def shared_targets(self) -> set[str]:
        """Tensors that go with others into one parameter: they are copied there, and not needed after."""
        many = Counter(self.targets.values())
        return {key for key, target in self.targets.items() if many[target] > 1}

    def put(self, tensors: Mapping[str, Tensor], where: tuple[Path, str]) -> Any:
        """Convert these tensors and set what comes of them in the model; transformers' own report of it.

        `where` is the folder and the checkpoint's name, for what is said of a tensor of another shape.
        """
        from transformers.core_model_loading import convert_and_load_state_dict_in_model

        report, _ = convert_and_load_state_dict_in_model(self.model, dict(tensors), self.config)
        check_shapes(report.mismatched_keys, *where)
        wrong = [*report.error_msgs, *report.conversion_errors.values()]
        if wrong:
            said = " ".join(line.strip() for line in wrong[0].splitlines()[-2:])
            raise Unpageable(f"transformers could not convert the weights of a layer: {said}")
        return report


def skeleton(folder: Path, device: str, name: str, held: Mapping[str, Any]) -> Skeleton:
    """The model of this folder, its layers unread, everything else loaded; `held` as for any other load of it.

    Raises:
        Refusal: If what is loaded has another shape than the config says, or holds NaN.
        Unpageable: If it is not one list of decoder layers that holds every expert, each layer with weights of its own.
        NoExperts, Unsupported: As `adapt`.
    """
    kind, files = _class(folder, name), WeightFiles(folder)
    made = Skeleton(None, files)
    model, report = _unread(kind, made, (folder, name)).from_pretrained(
        folder,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        device_map=None if device == "cpu" else {"": device},
        **held,
    )
    check_finite(model, folder, name)
    if missing := sorted(report["missing_keys"]):
        raise Unpageable(f"{name} lacks {len(missing)} tensors of its architecture, the first of them {missing[0]}.")
    model.__class__ = kind
    made.model = model.eval()
    return made


def _class(folder: Path, name: str) -> Any:
    from transformers.models.auto.auto_factory import _get_model_class
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    from analysis.lab.model import register
    from backend.checkpoints.facts import read_config

    register()
    config = typed(read_config(folder), name)
    if config.is_encoder_decoder:
        raise Unpageable(f"{name} has an encoder and a decoder, and layers are paged of one stack: {WHOLE}.")
    writes = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return _get_model_class(config, MODEL_FOR_CAUSAL_LM_MAPPING if writes else MODEL_MAPPING)


def _unread(kind: Any, made: Skeleton, where: tuple[Path, str]) -> Any:
    """The class with a load that reads nothing of its decoder layers."""

    def load(model: Any, state_dict: Any, files: Any, config: Any, expected_keys: Any = None) -> tuple[Any, None]:
        made.model, made.config = model, replace(config, device_map=config.device_map or {"": "cpu"})
        made.body = _body(model)
        _sort_keys(made)
        layers = {key for keys in made.keys for key in keys}
        outside = [key for key in made.files if key not in layers]
        report = made.put(made.files.read((), outside), where)
        absent: Any
        for absent in made.layers.parameters():
            absent._is_hf_initialized = True  # else transformers would draw random numbers for them
        report.missing_keys = {key for key in report.missing_keys if not key.startswith(f"{made.body}.")}
        return report, None

    overridden = {"_load_pretrained_model": staticmethod(load), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), overridden)


def _body(model: Any) -> str:
    """Name of the list of decoder layers, found from where the experts are."""
    modules = dict(model.named_modules())
    lists = {_outermost(layer.name, modules) for layer in adapt(model).layers}
    kind = model.config.model_type
    if None in lists or len(lists) > 1:
        found = ", ".join(sorted(str(each) for each in lists))
        raise Unpageable(f"{kind} keeps its experts in several places ({found}), not in one list of layers: {WHOLE}.")
    [body] = lists
    assert body is not None
    owners = Counter(id(p) for layer in modules[body] for p in {id(p): p for p in layer.parameters()}.values())
    if owners and max(owners.values()) > 1:
        raise Unpageable(f"{kind} shares weights between its layers, so none of them can leave alone: {WHOLE}.")
    return body


def _outermost(name: str, modules: Mapping[str, nn.Module]) -> str | None:
    parts = name.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return next((path for path in above if isinstance(modules[path], nn.ModuleList)), None)


def _sort_keys(made: Skeleton) -> None:
    """Which layer each tensor on disk belongs to, by the name that transformers gives it; strangers to nobody."""
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    model, mapping = made.model, made.config.weight_mapping or []
    renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    known = model.state_dict()
    made.keys = [[] for _ in made.layers]
    for key in sorted(made.files, key=dot_natural_key):
        target, _ = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
        if target not in known and key in known:
            target, _ = rename_source_key(key, [], [], model.base_model_prefix, known)
        place, _, rest = target.removeprefix(f"{made.body}.").partition(".")
        if target.startswith(f"{made.body}.") and place.isdecimal() and rest:
            if int(place) < len(made.keys):  # else a layer that only predicts further tokens: not part of the model
                made.keys[int(place)].append(key)
                made.targets[key] = target
